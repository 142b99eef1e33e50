package spec_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/alineod/alineod/internal/spec"
)

var compiled = sync.OnceValues(func() (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(spec.Schema()))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(spec.SchemaID, doc); err != nil {
		return nil, err
	}
	return c.Compile(spec.SchemaID)
})

// againstSchema is the schema's verdict on a document.
func againstSchema(t *testing.T, text string) error {
	t.Helper()
	schema, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return schema.Validate(value)
}

// TestSchemaAgreesWithParse holds the two verdicts against each other.
func TestSchemaAgreesWithParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		ok   bool
		// beyond: a rule that no schema can say, so only Parse refuses.
		beyond bool
	}{
		{text: `{"harness":"pi"}`, ok: true},
		{text: `{"cli":"scripted"}`, ok: true},
		{text: `{"harness":"pi","checkpoint":true}`, ok: true},
		{text: `{"harness":"pi","checkpoint":{"paths":["/srv/x"],"exclude":["*.log"],"retain":2}}`, ok: true},
		{text: `{"harness":"pi","unknown":[1],"resources":{"gpu":1}}`, ok: true},
		{text: `{"harness":"pi","model":"org/m-1:high@2","provider":"x"}`, ok: true},
		{text: `{"harness":"pi","image":"localhost:5000/a/b:tag"}`, ok: true},
		{text: `{"harness":"pi","packages":["libc6:amd64","git=1:2.39.5-0+deb12u1","g++"]}`, ok: true},
		{text: `{"harness":"pi","user":"1000:1000","workdir":"/srv/a..b","spawnDepth":0}`, ok: true},
		{text: `{"harness":"pi","setup":[{"run":"a\nb"}],"metadata":{"a":{"b":[]}}}`, ok: true},
		{text: `{"harness":"pi","onInterrupt":"retry","maxRetries":0,"maxAgents":7}`, ok: true},

		{text: `{}`},
		{text: `[]`},
		{text: `{"harness":"vim"}`},
		{text: `{"harness":3}`},
		{text: `{"harness":"pi","metadata":"x"}`},
		{text: `{"harness":"pi","metadata":[]}`},
		{text: `{"harness":"pi","name":" a"}`},
		{text: `{"harness":"pi","title":"a\nb"}`},
		{text: `{"harness":"pi","harnessVersion":"1 2"}`},
		{text: `{"harness":"pi","cliVersion":"-1"}`},
		{text: `{"harness":"pi","model":"-x"}`},
		{text: `{"harness":"pi","image":"a;b"}`},
		{text: `{"harness":"pi","packages":"git"}`},
		{text: `{"harness":"pi","packages":["a b"]}`},
		{text: `{"harness":"pi","packages":["$(id)"]}`},
		{text: `{"harness":"pi","packages":["git-"]}`},
		{text: `{"harness":"pi","packages":["-y"]}`},
		{text: `{"harness":"pi","setup":[{"name":"a"}]}`},
		{text: `{"harness":"pi","setup":[{"run":" "}]}`},
		{text: `{"harness":"pi","setup":[{"run":"a","cwd":"a/.."}]}`},
		{text: `{"harness":"pi","env":{"A-B":"x"}}`},
		{text: `{"harness":"pi","env":{"A":1}}`},
		{text: `{"harness":"pi","env":{"HOME":"/"}}`},
		{text: `{"harness":"pi","resources":{"cpu":2}}`},
		{text: `{"harness":"pi","resources":{"memory":"1 GB"}}`},
		{text: `{"harness":"pi","workdir":"../x"}`},
		{text: `{"harness":"pi","user":"-u"}`},
		{text: `{"harness":"pi","checkpoint":"yes"}`},
		{text: `{"harness":"pi","checkpoint":{"paths":["x"]}}`},
		{text: `{"harness":"pi","checkpoint":{"paths":["/"]}}`},
		{text: `{"harness":"pi","checkpoint":{"retain":0}}`},
		{text: `{"harness":"pi","onInterrupt":"later"}`},
		{text: `{"harness":"pi","onFailure":"ask","maxConsecutiveFailures":0}`, ok: true},
		{text: `{"harness":"pi","onFailure":"idle"}`},
		{text: `{"harness":"pi","maxConsecutiveFailures":-1}`},
		{text: `{"harness":"pi","maxRetries":101}`},
		{text: `{"harness":"pi","spawnDepth":-1}`},
		{text: `{"harness":"pi","maxAgents":1.5}`},

		{text: `{"harness":"pi","cli":"scripted"}`, beyond: true},
		{text: `{"harness":"pi","resources":{"memory":"1Mi"}}`, beyond: true},
		{text: `{"harness":"pi","env":{"A":"${"}}`, beyond: true},
		{text: `{"harness":"pi","checkpoint":{"exclude":["["]}}`, beyond: true},
		{text: `{"harness":"pi","checkpoint":{"paths":["/proc/x"]}}`, beyond: true},
	} {
		_, _, err := spec.Parse([]byte(tt.text))
		if (err == nil) != tt.ok {
			t.Errorf("Parse(%s) = %v, want accepted: %v", tt.text, err, tt.ok)
		}
		if err := againstSchema(t, tt.text); (err == nil) != (tt.ok || tt.beyond) {
			t.Errorf("the schema says of %s: %v", tt.text, err)
		}
	}
}

func TestSchemaIsStable(t *testing.T) {
	t.Parallel()
	for _, want := range []string{`"$schema": "https://json-schema.org/draft/2020-12/schema"`, `"cli"`, `"cliVersion"`, `"type": "boolean"`} {
		if !strings.Contains(string(spec.Schema()), want) {
			t.Errorf("the schema lacks %s", want)
		}
	}
	if strings.Contains(string(spec.Schema()), "Extra") {
		t.Error("the schema shows a field that is not JSON")
	}
}
