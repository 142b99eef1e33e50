package archive_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/alineod/alineod/internal/archive"
)

// benchHome makes a home of 20,000 files, 200 MB, in 1,000 directories.
func benchHome(b *testing.B) string {
	b.Helper()
	h := filepath.Join(b.TempDir(), "home")
	rng := rand.New(rand.NewPCG(1, 2))
	words := bytes.Repeat([]byte("func main() { return nil, fmt.Errorf(\"wrapped: %w\", err) }\n"), 1000)
	for i := range 20_000 {
		name := fmt.Sprintf("%s/d%d/e%d/f%d", h, i%50, i%1000, i)
		must(b, os.MkdirAll(filepath.Dir(name), 0o755))
		size := rng.IntN(20_000)
		content := bytes.Clone(words[:size])
		for range size / 20 {
			content[rng.IntN(size)] = byte(rng.Uint32())
		}
		must(b, os.WriteFile(name, content, 0o644))
	}
	return h
}

// BenchmarkPack packs and compresses a home as a checkpoint does; its
// reference, tar | zstd -1 of the same home, runs in the same loop. x/tar is
// the ratio of the times.
func BenchmarkPack(b *testing.B) {
	h := benchHome(b)
	ours := func() {
		enc, err := zstd.NewWriter(io.Discard, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2))
		must(b, err)
		r, w := io.Pipe()
		go func() {
			_, err := archive.Pack(b.Context(), w, archive.PackOptions{Home: h})
			w.CloseWithError(err)
		}()
		_, err = archive.Verify(b.Context(), io.TeeReader(r, enc), archive.Limits{})
		must(b, err)
		must(b, enc.Close())
	}
	reference := func() {
		out, err := exec.Command("sh", "-c", "tar -C \"$0\" -cf - . | zstd -1 -q > /dev/null", h).CombinedOutput()
		if err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	}
	reference() // fills the page cache for both
	var tarTime, ourTime float64
	for b.Loop() {
		tarTime += timed(reference)
		ourTime += timed(ours)
	}
	n := float64(b.N)
	b.ReportMetric(ourTime/n*1000, "ms/pack")
	b.ReportMetric(tarTime/n*1000, "ms/tar")
	b.ReportMetric(ourTime/tarTime, "x/tar")
	b.ReportMetric(0, "ns/op")
}

func timed(f func()) float64 {
	start := time.Now()
	f()
	return time.Since(start).Seconds()
}
