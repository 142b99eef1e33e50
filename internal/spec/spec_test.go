package spec_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/alineod/alineod/internal/spec"
)

func parse(t *testing.T, text string) *spec.Spec {
	t.Helper()
	s, _, err := spec.Parse([]byte(text))
	if err != nil {
		t.Fatalf("Parse(%s): %v", text, err)
	}
	return s
}

func TestParseTellsAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	_, warnings, err := spec.Parse([]byte(`{
		"name": 7,
		"cli": "vim",
		"cliVersion": "^1",
		"model": "--help",
		"image": "a b",
		"packages": ["git", "x; rm -rf /", 3, "foo-"],
		"setup": [{"run": "true"}, {"name": "b", "color": "red"}, {"run": 1, "cwd": "../up"}, "ls"],
		"env": {"1X": "a", "A": "${", "B": 3, "HOME": "/x", "C": "${A-B}"},
		"resources": {"cpu": "lots", "memory": "1Mi", "gpu": 1},
		"workdir": "/a/../b",
		"user": "root; id",
		"checkpoint": {"paths": ["rel", "/", "/proc/1"], "exclude": ["[", 4], "retain": 0},
		"onInterrupt": "maybe",
		"onFailure": "perhaps",
		"maxConsecutiveFailures": 1001,
		"maxRetries": -1,
		"spawnDepth": 1.5,
		"maxAgents": 3,
		"maxAgents": 4,
		"future": {"a": 1}
	}`))
	var e *spec.Error
	if !errors.As(err, &e) || !errors.Is(err, spec.ErrInvalid) {
		t.Fatalf("err = %v, want a *spec.Error of kind ErrInvalid", err)
	}
	got := map[string]string{}
	for _, p := range e.Problems {
		if was, twice := got[p.Path]; twice {
			t.Errorf("%s has two problems: %q and %q", p.Path, was, p.Message)
		}
		got[p.Path] = p.Message
	}
	for path, part := range map[string]string{
		"name":                   "must be a string, not a number",
		"cli":                    "must be one of pi, scripted",
		"cliVersion":             "exact version",
		"model":                  "name of a model",
		"image":                  "name of an image",
		"packages[1]":            "Debian package",
		"packages[2]":            "must be a string, not a number",
		"packages[3]":            "Debian package",
		"setup[1].run":           "required",
		"setup[2].run":           "must be a string, not a number",
		"setup[2].cwd":           "..",
		"setup[3]":               "must be an object, not a string",
		"env.1X":                 "name of a variable",
		"env.A":                  "without its }",
		"env.B":                  "must be a string, not a number",
		"env.HOME":               "cannot be set",
		"env.C":                  "${A-B}",
		"resources.cpu":          "number of cores",
		"resources.memory":       "out of range",
		"workdir":                "..",
		"user":                   "not a user",
		"checkpoint.paths[0]":    "absolute",
		"checkpoint.paths[1]":    "whole file system",
		"checkpoint.paths[2]":    "/proc",
		"checkpoint.exclude[0]":  "unfinished [",
		"checkpoint.exclude[1]":  "must be a string, not a number",
		"checkpoint.retain":      "from 1 to 100",
		"onInterrupt":            "must be one of idle, retry, retry-always",
		"maxRetries":             "from 0 to 100",
		"onFailure":              "must be one of fail, ask, retry",
		"maxConsecutiveFailures": "from 0 to 1000",
		"spawnDepth":             "whole number",
		"maxAgents":              "given twice",
	} {
		if !strings.Contains(got[path], part) {
			t.Errorf("%s: %q, want something with %q", path, got[path], part)
		}
		delete(got, path)
		if !strings.Contains(err.Error(), path) {
			t.Errorf("the error's text does not name %s", path)
		}
	}
	if len(got) > 0 {
		t.Errorf("problems nobody expected: %v", got)
	}
	var warned []string
	for _, w := range warnings {
		warned = append(warned, w.Path)
	}
	if diff := cmp.Diff([]string{"setup[1].color", "resources.gpu", "future"}, warned); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestParseNotAnObject(t *testing.T) {
	t.Parallel()
	for text, part := range map[string]string{
		"":                     "is not JSON",
		"[]":                   "must be an object, not an array",
		"{\n \"a\": 1,\n}":     "line 3",
		"{} {}":                "is not JSON",
		"{\"name\": \"\xff\"}": "UTF-8",
		"null":                 "must be an object, not null",
		`{"name":"` + strings.Repeat("x", spec.MaxBytes) + `"}`: "longer than",
	} {
		if _, _, err := spec.Parse([]byte(text)); !errors.Is(err, spec.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("Parse(%.20q) = %v, want something with %q", text, err, part)
		}
	}
}

func TestOlderNames(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"harness": "pi", "harnessVersion": "1.6.0"}`,
		`{"cli": "pi", "cliVersion": "1.6.0"}`,
		`{"cli": "pi", "harness": "pi", "cliVersion": "1.6.0", "harnessVersion": "1.6.0"}`,
	} {
		s := parse(t, text)
		if s.Harness != "pi" || s.HarnessVersion != "1.6.0" || s.Name != "pi" {
			t.Errorf("%s gives harness %q %q, name %q", text, s.Harness, s.HarnessVersion, s.Name)
		}
	}
	_, _, err := spec.Parse([]byte(`{"cli": "pi", "harness": "scripted"}`))
	var e *spec.Error
	if !errors.As(err, &e) || len(e.Problems) != 1 || e.Problems[0].Path != "cli" {
		t.Errorf("two different harnesses: %v, want one problem at cli", err)
	}
}

func TestUnknownKeysSurvive(t *testing.T) {
	t.Parallel()
	const text = `{"name":"n","harness":"pi","setup":[{"name":"step 1","run":"true","when":"late"}],` +
		`"resources":{"cpu":"2","gpu":{"count":1}},"checkpoint":{"enabled":true,"store":"s3"},` +
		`"metadata":{"n":1.0000000000000000001},"approval":"hold","zeta":[1,2]}`
	s := parse(t, text)
	out, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var want, got map[string]any
	if err := json.Unmarshal([]byte(text), &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !strings.Contains(string(out), "1.0000000000000000001") {
		t.Errorf("a number of the metadata changed: %s", out)
	}
	var again spec.Spec
	if err := json.Unmarshal(out, &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*s, again); diff != "" {
		t.Errorf("after a second reading (-want +got):\n%s", diff)
	}
}

func TestUnmarshalChecksTypesOnly(t *testing.T) {
	t.Parallel()
	var s spec.Spec
	if err := json.Unmarshal([]byte(`{"harness":"one-that-was","user":"a b"}`), &s); err != nil {
		t.Errorf("a stored spec that broke a newer rule: %v", err)
	}
	if err := json.Unmarshal([]byte(`{"harness":3}`), &s); !errors.Is(err, spec.ErrInvalid) {
		t.Errorf("a number for a name: %v, want ErrInvalid", err)
	}
}

func TestCheckpoint(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		value  string
		on     bool
		retain int
		out    string
	}{
		{`true`, true, 3, `true`},
		{`false`, false, 3, `false`},
		{`null`, false, 3, ``},
		{`{}`, true, 3, `true`},
		{`{"enabled": false, "retain": 9}`, false, 9, `{"enabled":false,"retain":9}`},
		{`{"retain": 1}`, true, 1, `{"enabled":true,"retain":1}`},
	} {
		s := parse(t, `{"harness": "pi", "checkpoint": `+tt.value+`}`)
		if s.Checkpointing() != tt.on || s.Retain(3) != tt.retain {
			t.Errorf("%s: on %v, retain %d", tt.value, s.Checkpointing(), s.Retain(3))
		}
		if tt.out == "" {
			continue
		}
		if out, err := json.Marshal(s.Checkpoint); err != nil || string(out) != tt.out {
			t.Errorf("%s is written as %s (%v), want %s", tt.value, out, err, tt.out)
		}
	}
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`{"harness":"pi"}`:                                             0,
		`{"harness":"pi","maxRetries":5}`:                              0,
		`{"harness":"pi","onInterrupt":"retry"}`:                       spec.DefaultMaxRetries,
		`{"harness":"pi","onInterrupt":"retry-always","maxRetries":0}`: 0,
	} {
		if s := parse(t, text); s.Retries() != want {
			t.Errorf("%s: %d retries, want %d", text, s.Retries(), want)
		}
	}
}

func TestSetupHash(t *testing.T) {
	t.Parallel()
	const base = `{"harness":"pi","harnessVersion":"1","image":"i","packages":["a1","b1"],"setup":[{"name":"n","run":"x"},{"run":"y"}]}`
	want := parse(t, base).SetupHash()
	if len(want) != 32 {
		t.Errorf("hash %q, want 32 digits", want)
	}
	for _, same := range []string{
		`{"setup":[{"run":"x"},{"run":"y","name":"other"}],"packages":["b1","a1","b1"],"image":"i","cliVersion":"1","cli":"pi"}`,
		`{"name":"z","harness":"pi","harnessVersion":"1","image":"i","packages":["a1","b1"],"setup":[{"run":"x"},{"run":"y"}],
		  "model":"m","env":{"A":"${B}"},"checkpoint":true,"user":"u","resources":{"cpu":"1"},"extra":1}`,
	} {
		if got := parse(t, same).SetupHash(); got != want {
			t.Errorf("%s has another hash", same)
		}
	}
	for _, other := range []string{
		`{"harness":"scripted","harnessVersion":"1","image":"i","packages":["a1","b1"],"setup":[{"run":"x"},{"run":"y"}]}`,
		`{"harness":"pi","harnessVersion":"2","image":"i","packages":["a1","b1"],"setup":[{"run":"x"},{"run":"y"}]}`,
		`{"harness":"pi","harnessVersion":"1","image":"j","packages":["a1","b1"],"setup":[{"run":"x"},{"run":"y"}]}`,
		`{"harness":"pi","harnessVersion":"1","image":"i","packages":["a1"],"setup":[{"run":"x"},{"run":"y"}]}`,
		`{"harness":"pi","harnessVersion":"1","image":"i","packages":["a1","b1"],"setup":[{"run":"y"},{"run":"x"}]}`,
		`{"harness":"pi","harnessVersion":"1","image":"i","packages":["a1","b1"],"setup":[{"run":"x","cwd":"d"},{"run":"y"}]}`,
	} {
		if got := parse(t, other).SetupHash(); got == want {
			t.Errorf("%s has the same hash", other)
		}
	}
	open := parse(t, `{"harness":"pi","packages":["a1","b1"],"setup":[{"run":"x"},{"run":"y"}]}`)
	if got := open.WithDefaults("i", "1").SetupHash(); got != want {
		t.Error("defaults filled in give another hash than the same values written out")
	}
	if open.Image != "" {
		t.Error("WithDefaults changed the spec it was asked of")
	}
}

func TestEnv(t *testing.T) {
	t.Parallel()
	s := parse(t, `{"harness":"pi","env":{
		"PLAIN":"a","KEY":"${TOKEN}","HEADER":"Bearer ${TOKEN}/${EMPTY}.","COST":"$$5 $6 $","LITERAL":"$${TOKEN}","AGAIN":"$$${TOKEN}$$"}}`)
	vars := map[string]string{"TOKEN": "t0ken$${X}", "EMPTY": ""}
	lookup := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }

	env, err := s.ResolveEnv(lookup)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{
		"PLAIN": "a", "KEY": "t0ken$${X}", "HEADER": "Bearer t0ken$${X}/.",
		"COST": "$5 $6 $", "LITERAL": "${TOKEN}", "AGAIN": "$t0ken$${X}$",
	}, env); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"t0ken$${X}"}, s.Secrets(lookup)); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}

	vars = nil
	_, err = s.ResolveEnv(lookup)
	var unset *spec.UnsetVarError
	if !errors.As(err, &unset) {
		t.Fatalf("err = %v, want an *UnsetVarError", err)
	}
	if diff := cmp.Diff([]string{"EMPTY", "TOKEN"}, unset.Names); diff != "" {
		t.Errorf("unset (-want +got):\n%s", diff)
	}
	if text := err.Error(); !strings.Contains(text, "${TOKEN}") || !strings.Contains(text, "${EMPTY}") {
		t.Errorf("%q does not name the variables", text)
	}
}

func TestResources(t *testing.T) {
	t.Parallel()
	for cpu, want := range map[string]int64{"500m": 500, "2": 2000, "1.5": 1500, "0.001": 1} {
		if got := parse(t, `{"harness":"pi","resources":{"cpu":"`+cpu+`"}}`).Resources.CPUMillis(); got != want {
			t.Errorf("cpu %s = %d, want %d", cpu, got, want)
		}
	}
	for memory, want := range map[string]int64{
		"512Mi": 512 << 20, "2Gi": 2 << 30, "1.5Gi": 3 << 29, "1G": 1e9, "6291456": 6 << 20, "1024Ti": 1 << 50, "7000k": 7e6,
	} {
		if got := parse(t, `{"harness":"pi","resources":{"memory":"`+memory+`"}}`).Resources.MemoryBytes(); got != want {
			t.Errorf("memory %s = %d, want %d", memory, got, want)
		}
	}
	for _, bad := range []string{`"cpu":"0"`, `"cpu":"1001"`, `"cpu":"0.5m"`, `"cpu":"-1"`, `"cpu":"1e3"`, `"cpu":2`,
		`"memory":"5Mi"`, `"memory":"1025Ti"`, `"memory":"9999999999999999Ti"`, `"memory":"1 Gi"`, `"memory":"1gb"`} {
		if _, _, err := spec.Parse([]byte(`{"harness":"pi","resources":{` + bad + `}}`)); !errors.Is(err, spec.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", bad, err)
		}
	}
	var none *spec.Resources
	if none.CPUMillis() != 0 || none.MemoryBytes() != 0 {
		t.Error("no resources are not no limits")
	}
}

func TestExamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../configs/specs/*.json")
	if err != nil || len(files) < 3 {
		t.Fatalf("examples: %v (%v), want at least three", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, warnings, err := spec.Parse(data); err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v, warnings %v", file, err, warnings)
		}
		if verdict := againstSchema(t, string(data)); verdict != nil {
			t.Errorf("%s: %v", file, verdict)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"harness":"pi","env":{"A":"${B}$$"},"checkpoint":{"paths":["/a"]},"x":[{}]}`))
	f.Add([]byte(`{"cli":"scripted","setup":[{"run":"a"}],"resources":{"cpu":"500m","memory":"1Gi"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, _, err := spec.Parse(data)
		if err != nil {
			if !errors.Is(err, spec.ErrInvalid) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		// What was accepted is written, read and accepted again, the same.
		out, err := json.Marshal(s)
		if err != nil {
			t.Fatalf("accepted, but cannot be written: %v", err)
		}
		again, _, err := spec.Parse(out)
		if err != nil {
			t.Fatalf("accepted, but its own text is refused: %v\n%s", err, out)
		}
		if s.SetupHash() != again.SetupHash() {
			t.Fatal("the hash changed by writing and reading")
		}
	})
}
