package spec

import (
	"fmt"
	"math/big"
	"strings"
)

const (
	// minMemory is the least the container engine accepts.
	minMemory = 6 << 20
	maxMemory = 1 << 50 // 1 Pi: beyond it is a slip of the pen
	maxMillis = 1_000_000
)

// suffixes of an amount of bytes. The longer ones are looked for first.
var suffixes = []struct {
	text   string
	factor int64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40},
	{"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12},
}

// CPUMillis is the CPU limit in thousandths of a core; 0 is no limit. It is
// safe on nil.
func (r *Resources) CPUMillis() int64 {
	if r == nil || r.CPU == "" {
		return 0
	}
	n, _ := parseCPU(r.CPU)
	return n
}

// MemoryBytes is the memory limit in bytes; 0 is no limit. It is safe on nil.
func (r *Resources) MemoryBytes() int64 {
	if r == nil || r.Memory == "" {
		return 0
	}
	n, _ := parseMemory(r.Memory)
	return n
}

func parseCPU(s string) (int64, error) {
	if !cpuRE.MatchString(s) {
		return 0, fmt.Errorf("%q is not a number of cores; write 500m, 2 or 1.5", s)
	}
	number, factor := s, int64(1000)
	if cut, ok := strings.CutSuffix(s, "m"); ok {
		number, factor = cut, 1
	}
	n, ok := scale(number, factor)
	if !ok || n < 1 || n > maxMillis {
		return 0, fmt.Errorf("%q is out of range; from 1m to 1000 cores", s)
	}
	return n, nil
}

func parseMemory(s string) (int64, error) {
	if !memoryRE.MatchString(s) {
		return 0, fmt.Errorf("%q is not an amount of memory; write 512Mi, 2Gi or a number of bytes", s)
	}
	number, factor := s, int64(1)
	for _, x := range suffixes {
		if cut, ok := strings.CutSuffix(s, x.text); ok {
			number, factor = cut, x.factor
			break
		}
	}
	n, ok := scale(number, factor)
	if !ok || n < minMemory || n > maxMemory {
		return 0, fmt.Errorf("%q is out of range; from 6Mi to 1024Ti", s)
	}
	return n, nil
}

// scale multiplies a decimal number and cuts what is left of a unit. It counts
// in whole numbers: 1.1Gi is the same on every machine.
func scale(number string, factor int64) (int64, bool) {
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, false
	}
	r.Mul(r, new(big.Rat).SetInt64(factor))
	n := new(big.Int).Quo(r.Num(), r.Denom())
	return n.Int64(), n.IsInt64()
}
