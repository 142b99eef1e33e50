package bridge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/bridge"
	"github.com/alineod/alineod/internal/harness"
)

func openJournal(t *testing.T, dir string, segBytes, maxBytes int64) *bridge.Journal {
	t.Helper()
	j, err := bridge.OpenTestJournal(dir, segBytes, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// note is a record that can be told from others.
func note(n int) bridge.Record {
	return bridge.Record{
		Epoch: "e", TS: 1, Kind: bridge.KindLine, TurnID: "t_x",
		Events: []harness.Event{event("message.ended", map[string]string{"n": fmt.Sprint(n), "pad": strings.Repeat("<", 50)})},
	}
}

func fill(t *testing.T, j *bridge.Journal, from, to int) {
	t.Helper()
	for n := from; n <= to; n++ {
		if pos, err := j.Append(note(n)); err != nil || pos != int64(n) {
			t.Fatalf("append %d = %d, %v", n, pos, err)
		}
	}
}

// readAll reads as a subscriber, to the end of what is there.
func readAll(t *testing.T, j *bridge.Journal, after int64) []bridge.Record {
	t.Helper()
	r := j.Reader(after)
	defer r.Close()
	var all []bridge.Record
	for {
		batch, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if len(batch) == 0 {
			return all
		}
		all = append(all, batch...)
	}
}

func segments(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "journal", "*.seg"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestJournalTornEnd(t *testing.T) {
	t.Parallel()
	whole := t.TempDir()
	j := openJournal(t, whole, 1<<20, 1<<20)
	fill(t, j, 1, 3)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(segments(t, whole)[0])
	if err != nil {
		t.Fatal(err)
	}
	entry := len(data) / 3
	for cut := 1; cut <= entry; cut += 7 {
		for name, end := range map[string]string{"cut": "", "zeros": strings.Repeat("\x00", cut), "garbage": "00000000 {]\n"} {
			dir := t.TempDir()
			os.Mkdir(filepath.Join(dir, "journal"), 0o700)
			damaged := append(append([]byte(nil), data[:len(data)-cut]...), end...)
			if err := os.WriteFile(filepath.Join(dir, "journal", filepath.Base(segments(t, whole)[0])), damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := bridge.ReadJournal(filepath.Join(dir, "journal"), 0, 100); err != nil || len(got) != 2 {
				t.Fatalf("%s %d: ReadJournal found %d records, %v", name, cut, len(got), err)
			}
			j := openJournal(t, dir, 1<<20, 1<<20)
			if pos, err := j.Append(note(33)); err != nil || pos != 3 {
				t.Fatalf("%s %d: append at %d, %v", name, cut, pos, err)
			}
			all := readAll(t, j, 0)
			checkPositions(t, 0, all)
			if len(all) != 3 || !strings.Contains(string(all[2].Events[0].Data), `"33"`) {
				t.Fatalf("%s %d: %d records after the repair", name, cut, len(all))
			}
			j.Close()
		}
	}
}

// A journal that is damaged in the middle tells what is missing and goes on.
func TestJournalDamagedMiddle(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openJournal(t, dir, 500, 1<<20)
	fill(t, j, 1, 20)
	files := segments(t, dir)
	if len(files) < 3 {
		t.Fatalf("%d segments", len(files))
	}
	data, err := os.ReadFile(files[1])
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(data), "\n")
	lines[1] = strings.Replace(lines[1], `"n"`, `"m"`, 1)
	if err := os.WriteFile(files[1], []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	live := readAll(t, j, 0)
	j.Close()
	dead, err := bridge.ReadJournal(dir, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	again := openJournal(t, dir, 500, 1<<20)
	defer again.Close()
	for name, got := range map[string][]bridge.Record{"live": live, "dead": dead, "reopened": readAll(t, again, 0)} {
		last, dropped := int64(0), int64(0)
		for _, r := range got {
			if r.Kind == bridge.KindDropped {
				dropped += r.Dropped
				if r.Pos != last+r.Dropped {
					t.Errorf("%s: dropped record %+v after %d", name, r, last)
				}
			} else if r.Pos != last+1 {
				t.Errorf("%s: record %d after %d", name, r.Pos, last)
			}
			last = r.Pos
		}
		if last != 20 || dropped < 1 || dropped >= int64(len(lines)) {
			t.Errorf("%s: ends at %d, %d dropped", name, last, dropped)
		}
	}
}

func TestJournalBound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const maxBytes = 4000
	j := openJournal(t, dir, 1000, maxBytes)
	defer j.Close()
	if _, err := j.Append(bridge.Record{Kind: bridge.KindTurn, TurnID: "t_first"}); err != nil {
		t.Fatal(err)
	}
	fill(t, j, 2, 50)
	slow := j.Reader(10)
	defer slow.Close()
	fill(t, j, 51, 200)
	size := int64(0)
	for _, f := range segments(t, dir) {
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		size += st.Size()
	}
	if size > maxBytes+500 {
		t.Errorf("journal of %d bytes, bound %d", size, maxBytes)
	}
	oldest, written := j.Bounds()
	if oldest < 100 || written != 200 {
		t.Fatalf("holds %d to %d", oldest, written)
	}
	batch, err := slow.Next()
	if err != nil {
		t.Fatal(err)
	}
	if batch[0].Kind != bridge.KindDropped || batch[0].Dropped != oldest-1-10 || batch[0].Pos != oldest-1 {
		t.Errorf("a reader that was overtaken got %+v", batch[0])
	}
	checkPositions(t, oldest-1, batch[1:])
	dead, err := bridge.ReadJournal(dir, 10, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(batch, dead); diff != "" {
		t.Errorf("read from outside (-live +dead):\n%s", diff)
	}
	if !j.HasTurn("t_first") {
		t.Error("turn forgotten")
	}
	again := openJournal(t, dir, 1000, maxBytes)
	defer again.Close()
	if !again.HasTurn("t_first") || again.LastTurn() != "t_first" {
		t.Error("turn forgotten with its segment")
	}
	if _, w := again.Bounds(); w != 200 {
		t.Errorf("reopened at %d", w)
	}
}

func TestJournalAck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openJournal(t, dir, 1000, 1<<20)
	defer j.Close()
	fill(t, j, 1, 100)
	before := len(segments(t, dir))
	if err := j.Ack(50); err != nil {
		t.Fatal(err)
	}
	oldest, _ := j.Bounds()
	if after := len(segments(t, dir)); after >= before || oldest > 51 || oldest < 30 {
		t.Errorf("%d of %d segments left, from %d", after, before, oldest)
	}
	checkPositions(t, 50, readAll(t, j, 50))
	if err := j.Ack(1000); err != nil {
		t.Fatal(err)
	}
	if n := len(segments(t, dir)); n != 1 {
		t.Errorf("%d segments after everything was acknowledged", n)
	}
	fill(t, j, 101, 110)
	checkPositions(t, 100, readAll(t, j, 100))
}

// Lines that say nothing have positions, and cost next to nothing.
func TestJournalRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openJournal(t, dir, 1<<20, 1<<20)
	empty := bridge.Record{Epoch: "e", TS: 1, Kind: bridge.KindLine, TurnID: "t_x"}
	n := 3*bridge.MaxRun + 7
	for range n {
		j.Skip(empty)
	}
	if pos, err := j.Append(note(1)); err != nil || pos != int64(n+1) {
		t.Fatalf("append = %d, %v", pos, err)
	}
	j.Skip(empty)
	if head := j.Flushed(); head != int64(n+2) {
		t.Errorf("head %d", head)
	}
	for _, after := range []int64{0, 5, bridge.MaxRun, bridge.MaxRun + 1, int64(n), int64(n + 1)} {
		all := readAll(t, j, after)
		checkPositions(t, after, all)
		if len(all) != n+2-int(after) {
			t.Errorf("%d records behind %d", len(all), after)
		}
	}
	if all := readAll(t, j, 0); len(all[5].Events) != 0 || all[5].TurnID != "t_x" || all[5].Kind != bridge.KindLine {
		t.Errorf("empty record %+v", all[5])
	}
	j.Close()
	some, err := bridge.ReadJournal(dir, 3, 10)
	if err != nil || len(some) != 10 {
		t.Fatalf("ReadJournal: %d records, %v", len(some), err)
	}
	checkPositions(t, 3, some)
	if st, _ := os.Stat(segments(t, dir)[0]); st.Size() > 2000 {
		t.Errorf("%d empty records take %d bytes", n, st.Size())
	}
}

// However the readers come and go while it is written, each sees each record
// once.
func TestJournalConcurrent(t *testing.T) {
	t.Parallel()
	j := openJournal(t, t.TempDir(), 2000, 1<<30)
	defer j.Close()
	const total = 5000
	ctx := testContext(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 1; n <= total; n++ {
			if n%3 == 0 && n < total {
				j.Skip(bridge.Record{Epoch: "e", Kind: bridge.KindLine})
				continue
			}
			if _, err := j.Append(note(n)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			last := int64(0)
			for last < total {
				r := j.Reader(last)
				for range 1 + rnd.IntN(5) {
					if err := j.Wait(ctx, last); err != nil {
						t.Error(err)
						r.Close()
						return
					}
					batch, err := r.Next()
					if err != nil {
						t.Error(err)
						r.Close()
						return
					}
					for _, rec := range batch {
						if rec.Pos != last+1 {
							t.Errorf("record %d after %d", rec.Pos, last)
						}
						if len(rec.Events) > 0 && !strings.Contains(string(rec.Events[0].Data), fmt.Sprintf(`"n":"%d"`, rec.Pos)) {
							t.Errorf("record %d is %s", rec.Pos, rec.Events[0].Data)
						}
						last = rec.Pos
					}
					if err := j.Sync(last); err != nil {
						t.Error(err)
					}
					if last == total {
						break
					}
				}
				r.Close()
			}
		})
	}
	wg.Wait()
}

// What does not fit a record, or a frame, leaves a note and not a hole.
func TestJournalOversizedRecord(t *testing.T) {
	t.Parallel()
	j := openJournal(t, t.TempDir(), 1<<20, 1<<30)
	defer j.Close()
	big := note(1)
	big.Events = append(big.Events, harness.Event{Name: "message.ended", Body: json.RawMessage(`"` + strings.Repeat("z", bridge.MaxFrame) + `"`)})
	broken := note(2)
	broken.Events = append(broken.Events, harness.Event{Name: "tool.ended", Body: json.RawMessage(`{"half`)})
	many := note(3)
	for range 2 * bridge.MaxEvents {
		many.Events = append(many.Events, harness.Event{Name: "retry.started"})
	}
	for i, r := range []bridge.Record{big, broken, many} {
		if _, err := j.Append(r); err != nil {
			t.Errorf("record %d: %v", i, err)
		}
	}
	all := readAll(t, j, 0)
	checkPositions(t, 0, all)
	if len(all) != 3 {
		t.Fatalf("%d records", len(all))
	}
	for _, r := range all {
		if !has(r, "message.ended") || !has(r, "diagnostic.stored") || len(r.Events) > bridge.MaxEvents {
			t.Errorf("record %d has %d events", r.Pos, len(r.Events))
		}
	}
}

// Whatever stands in the directory of a dead sandbox, reading it ends soon,
// uses little and returns rising positions.
func TestReadJournalHostile(t *testing.T) {
	t.Parallel()
	good := string(bridge.EncodeEntry(1, 1, `{"pos":1,"kind":"line"}`))
	const first = "00000000000000000001.seg"
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		make func(t *testing.T, dir string) error
		want int
	}{
		"empty":   {func(t *testing.T, dir string) error { return nil }, 0},
		"good":    {write(first, good), 1},
		"link":    {func(t *testing.T, dir string) error { return os.Symlink(secret, filepath.Join(dir, first)) }, 0},
		"pipe":    {func(t *testing.T, dir string) error { return syscall.Mkfifo(filepath.Join(dir, first), 0o600) }, 0},
		"dir":     {func(t *testing.T, dir string) error { return os.Mkdir(filepath.Join(dir, first), 0o700) }, 0},
		"noise":   {write(first, strings.Repeat("\xff\x00\n", 1000)), 0},
		"zeros":   {write(first, strings.Repeat("\x00", 1<<20)), 0},
		"huge":    {write(first, "00000000 00ffffff 0000000000000001 0001 - {}\n"), 0},
		"larger":  {write(first, "00000000 ffffffff 0000000000000001 0001 - {}\n"), 0},
		"other":   {write(first, good+string(bridge.EncodeEntry(2, 1, `{"pos":7,"kind":"line"}`))), 1},
		"back":    {write(first, good+good), 1},
		"jump":    {write(first, good+string(bridge.EncodeEntry(3, 1, `{"pos":3,"kind":"line"}`))), 1},
		"end":     {write("09223372036854775807.seg", string(bridge.EncodeEntry(1<<62, 1, `{"pos":4611686018427387904}`))), 0},
		"run":     {write(first, string(bridge.EncodeEntry(4096, 4096, `{"pos":4096,"run":9999999,"kind":"line"}`))), 0},
		"dropped": {write(first, string(bridge.EncodeEntry(1, 1, `{"pos":1,"kind":"dropped","dropped":1}`))), 0},
		"json":    {write(first, string(bridge.EncodeEntry(1, 1, `{"pos":1,"events":5}`))), 0},
		"events":  {write(first, string(bridge.EncodeEntry(1, 1, `{"pos":1,"events":[`+strings.Repeat("{},", 100_000)+`{}]}`))), 0},
		"deep":    {write(first, string(bridge.EncodeEntry(1, 1, `{"pos":1,"order":`+strings.Repeat("[", 1_000_000)))), 0},
		"later":   {write("00000000000000000005.seg", string(bridge.EncodeEntry(5, 1, `{"pos":5,"kind":"line"}`))), 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := tc.make(t, dir); err != nil {
				t.Fatal(err)
			}
			got, err := bridge.ReadJournal(dir, 0, 100)
			if err != nil || len(got) != tc.want {
				t.Errorf("%d records, %v; want %d", len(got), err, tc.want)
			}
		})
	}
	t.Run("no directory", func(t *testing.T) {
		t.Parallel()
		if got, err := bridge.ReadJournal(filepath.Join(t.TempDir(), "gone"), 0, 10); err != nil || len(got) != 0 {
			t.Errorf("%d records, %v", len(got), err)
		}
		link := filepath.Join(t.TempDir(), "link")
		os.Symlink(filepath.Dir(secret), link)
		if _, err := bridge.ReadJournal(link, 0, 10); err == nil {
			t.Error("a link to a directory was followed")
		}
	})
	t.Run("many files", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		for i := range 5000 {
			os.WriteFile(filepath.Join(dir, fmt.Sprintf("%020d.seg", i+1)), nil, 0o600)
		}
		_, err := bridge.ReadJournal(dir, 0, 10)
		wantErr(t, err, bridge.ErrProtocol)
	})
}

func write(name, content string) func(*testing.T, string) error {
	return func(_ *testing.T, dir string) error {
		return os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600)
	}
}

func FuzzReadJournal(f *testing.F) {
	f.Add([]byte("00000000 00000002 0000000000000001 0001 - {}\n"))
	f.Add(bridge.EncodeEntry(1, 1, `{"pos":1,"kind":"line","events":[{"name":"x"}]}`))
	f.Add(bridge.EncodeEntry(9, 9, `{"pos":9,"run":9}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		os.WriteFile(filepath.Join(dir, "00000000000000000001.seg"), data, 0o600)
		got, err := bridge.ReadJournal(dir, 0, 10)
		if err != nil || len(got) > 10 {
			t.Fatalf("%d records, %v", len(got), err)
		}
		last := int64(0)
		for _, r := range got {
			if r.Pos <= last {
				t.Fatalf("position %d after %d", r.Pos, last)
			}
			last = r.Pos
		}
	})
}

// A journal that cannot be written gives nothing away and loses nothing.
func TestJournalFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := openJournal(t, dir, 1, 1<<20) // every record begins a segment
	defer j.Close()
	fill(t, j, 1, 3)
	block := filepath.Join(dir, "journal", fmt.Sprintf("%020d.seg", 4))
	if err := os.Mkdir(block, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(note(4)); err == nil {
		t.Fatal("appended to what cannot be written")
	}
	for range 5 {
		j.Skip(bridge.Record{Kind: bridge.KindLine})
	}
	if head := j.Flushed(); head != 3 {
		t.Errorf("told of position %d, wrote 3", head)
	}
	if err := os.Remove(block); err != nil {
		t.Fatal(err)
	}
	fill(t, j, 9, 9) // behind the five
	checkPositions(t, 0, readAll(t, j, 0))
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if err := j.Wait(ctx, 9); err == nil {
		t.Error("waited for nothing")
	}
}
