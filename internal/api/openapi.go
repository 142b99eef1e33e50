package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

const (
	schemasPrefix = "#/components/schemas/"
	errorSchema   = "Error"
)

// schemaName is the name of a type in the document.
func schemaName(t reflect.Type, hint string) string {
	if t == reflect.TypeFor[problem]() {
		return errorSchema // as a Problem is one field of it
	}
	return huma.DefaultSchemaNamer(t, hint)
}

// operation begins the documentation of a route: all but body and answer.
func (rs *routes) operation(rt route) *huma.Operation {
	op := &huma.Operation{
		Method: rt.method, Path: rt.path, OperationID: rt.id, Summary: rt.summary,
		Tags:      []string{rt.tag},
		Responses: map[string]*huma.Response{},
	}
	if rt.open {
		op.Security = []map[string][]string{{}}
	}
	for _, name := range wildcards(rt.path) {
		p := &huma.Param{Name: name, In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}}
		if name == "turn" {
			p.Schema = &huma.Schema{Type: huma.TypeInteger, Minimum: bound(0)}
		}
		op.Parameters = append(op.Parameters, p)
	}
	for _, p := range rt.params {
		where := p.in
		if where == "" {
			where = "query"
		}
		op.Parameters = append(op.Parameters, &huma.Param{Name: p.name, In: where, Description: p.doc, Schema: p.schema()})
	}
	if rt.changes {
		op.Parameters = append(op.Parameters, &huma.Param{Name: keyHeader, In: "header",
			Description: "As the field " + keyField + " of a body",
			Schema:      &huma.Schema{Type: huma.TypeString}})
	}
	op.Responses["default"] = &huma.Response{
		Description: "An error",
		Content: map[string]*huma.MediaType{"application/json": {
			Schema: &huma.Schema{Ref: schemasPrefix + errorSchema},
		}},
	}
	return op
}

// document is the OpenAPI document of all routes added so far.
func (rs *routes) document(o Options) ([]byte, error) {
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "alineod", Version: o.Version,
			Description: "Keeps a swarm of coding agents alive across crashes.",
		},
		Components: &huma.Components{
			Schemas: rs.registry,
			SecuritySchemes: map[string]*huma.SecurityScheme{
				"bearer": {Type: "http", Scheme: "bearer", Description: "Needed where a token is configured."},
			},
		},
		// Either: without a configured token nothing is asked for.
		Security: []map[string][]string{{"bearer": {}}, {}},
	}
	if o.Version == "" {
		doc.Info.Version = "unknown"
	}
	for _, op := range rs.ops {
		doc.AddOperation(op)
	}
	rs.allowNullObjects()
	rs.openAnswers()
	body, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, body, "", "  "); err != nil {
		return nil, fmt.Errorf("indenting: %w", err)
	}
	return indented.Bytes(), nil
}

// allowNullObjects corrects the fields that are pointers to objects and are
// always written: they can be null, which a bare reference does not say.
func (rs *routes) allowNullObjects() {
	for name, s := range rs.registry.Map() {
		t := rs.registry.TypeFromRef(schemasPrefix + name)
		if t == nil || t.Kind() != reflect.Struct {
			continue
		}
		for i := range t.NumField() {
			f := t.Field(i)
			field, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			p := s.Properties[field]
			if p == nil || p.Ref == "" || f.Type.Kind() != reflect.Pointer || strings.Contains(options, "omit") {
				continue
			}
			s.Properties[field] = &huma.Schema{AnyOf: []*huma.Schema{{Ref: p.Ref}, {Type: "null"}}}
		}
	}
}

// answers documents good statuses with JSON of one type.
func (rs *routes) answers(op *huma.Operation, t reflect.Type, codes ...int) {
	for _, code := range codes {
		response := &huma.Response{Description: http.StatusText(code)}
		if t != reflect.TypeFor[none]() {
			response.Content = map[string]*huma.MediaType{"application/json": {Schema: rs.registry.Schema(t, true, "")}}
		}
		op.Responses[strconv.Itoa(code)] = response
	}
}

// openAnswers drops, from what is only answered, that there can be no other
// fields: a client generated from the document must not fail on a newer
// daemon. Bodies stay closed, as they are when they are decoded.
func (rs *routes) openAnswers() {
	closed := map[*huma.Schema]bool{}
	for _, s := range rs.bodies {
		rs.reach(s, closed)
	}
	for _, s := range rs.registry.Map() {
		if !closed[s] && s.AdditionalProperties == false {
			s.AdditionalProperties = nil
		}
	}
}

// reach gathers the schemas that s is made of.
func (rs *routes) reach(s *huma.Schema, found map[*huma.Schema]bool) {
	if s = rs.resolved(s); found[s] {
		return
	}
	found[s] = true
	for _, p := range s.Properties {
		rs.reach(p, found)
	}
	if s.Items != nil {
		rs.reach(s.Items, found)
	}
}
