package api

import (
	"context"
	"math"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/alineod/alineod/internal/swarm"
)

const (
	bodyLimit = 4 << 20
	// A prompt may carry images, in base64.
	promptLimit = 24 << 20
)

// methods are all that any route has.
var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete}

// route declares one route: what is served and what is documented.
type route struct {
	method, path string
	id, summary  string
	tag          string
	params       []param // of the query; those of the path are known from it
	status       int     // of a good answer; 0: 200
	also         []int   // other good statuses, chosen by statusOf
	statusOf     func(answer any) int
	limit        int64
	// changes: an idempotency key may be given by header.
	changes bool
	open    bool // needs no token
	// upload is the type of a body that is not JSON: the handler reads it, and
	// nothing bounds its length.
	upload string
}

// param is a parameter of a query or a header.
type param struct {
	name, in string // in: query (default) or header
	doc      string
	typ      string
	enum     []any
	min, max *float64
}

// none is the body of a route that has none, and the answer of one that has
// nothing to say.
type none struct{}

// Keyed is embedded by the bodies of routes that change something.
type Keyed struct {
	IdempotencyKey string `json:"idempotencyKey,omitempty" maxLength:"255" doc:"The same key and body again get the first answer and have no second effect"`
}

func (k *Keyed) key() string { return k.IdempotencyKey }

// in is what a handler gets of a request.
type in[B any] struct {
	r    *http.Request
	body B
	idem swarm.Idempotency
	num  map[string]float64 // numbers among the parameters, where given
}

func (i *in[B]) id() string               { return i.r.PathValue("id") }
func (i *in[B]) query(name string) string { return i.r.URL.Query().Get(name) }

// routes gathers the declarations.
type routes struct {
	s        *server
	registry huma.Registry
	ops      []*huma.Operation
	bodies   []*huma.Schema
}

func newRoutes(s *server) *routes {
	r := &routes{s: s, registry: huma.NewMapRegistry(schemasPrefix, schemaName)}
	r.registry.Schema(reflect.TypeFor[problem](), true, "")
	return r
}

// handle adds a route whose body is a B and whose answer is an A, both JSON.
func handle[B, A any](rs *routes, rt route, do func(ctx context.Context, req *in[B]) (A, error)) {
	body, answer := reflect.TypeFor[B](), reflect.TypeFor[A]()
	op := rs.operation(rt)
	var schema *huma.Schema
	if body != reflect.TypeFor[none]() {
		schema = rs.registry.Schema(body, true, "")
		rs.bodies = append(rs.bodies, schema)
		op.RequestBody = &huma.RequestBody{
			Required: len(rs.resolved(schema).Required) > 0,
			Content:  map[string]*huma.MediaType{"application/json": {Schema: schema, Example: mustJSON(examples[rt.id].body)}},
		}
	}
	status := rt.status
	if status == 0 {
		status = http.StatusOK
	}
	if rt.upload != "" {
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{rt.upload: {}}}
	}
	rs.answers(op, answer, append(rt.also, status)...)
	if response := op.Responses[strconv.Itoa(status)].Content["application/json"]; response != nil {
		response.Example = mustJSON(examples[rt.id].answer)
	}
	if rt.limit == 0 {
		rt.limit = bodyLimit
	}
	rs.add(rt, op, func(w http.ResponseWriter, r *http.Request) error {
		req := &in[B]{r: r}
		var err error
		if req.num, err = numbers(rt, r); err != nil {
			return err
		}
		if r.Body != http.NoBody {
			r.Body = &steady{r.Body, http.NewResponseController(w), rs.s.ReadTimeout}
		}
		if rt.upload == "" {
			r.Body = http.MaxBytesReader(w, r.Body, rt.limit)
		}
		if req.idem, err = decode(rs.registry, schema, rt, r, &req.body); err != nil {
			return err
		}
		a, err := do(r.Context(), req)
		if err != nil {
			return err
		}
		code := status
		if rt.statusOf != nil {
			code = rt.statusOf(a)
		}
		if answer == reflect.TypeFor[none]() {
			w.WriteHeader(code)
			return nil
		}
		writeJSON(w, code, a)
		return nil
	})
}

// raw adds a route that writes its answer of the type content itself. An error
// it returns becomes the answer; it must not have written before.
func (rs *routes) raw(rt route, content string, do func(http.ResponseWriter, *http.Request) error) {
	op := rs.operation(rt)
	media := &huma.MediaType{}
	if content == streamType {
		media = rs.streamed()
	}
	op.Responses["200"] = &huma.Response{Description: http.StatusText(http.StatusOK), Content: map[string]*huma.MediaType{content: media}}
	rs.add(rt, op, do)
}

func (rs *routes) add(rt route, op *huma.Operation, do func(http.ResponseWriter, *http.Request) error) {
	rs.ops = append(rs.ops, op)
	rs.s.mux.HandleFunc(rt.method+" "+rt.path, func(w http.ResponseWriter, r *http.Request) {
		if err := do(w, r); err != nil {
			rs.s.fail(w, r, err)
		}
	})
}

// resolved follows a reference.
func (rs *routes) resolved(s *huma.Schema) *huma.Schema {
	for s.Ref != "" {
		s = rs.registry.SchemaFromRef(s.Ref)
	}
	return s
}

// wildcards are the names of a path's variables.
func wildcards(path string) []string {
	var names []string
	for part := range strings.SplitSeq(path, "/") {
		if strings.HasPrefix(part, "{") {
			names = append(names, strings.Trim(part, "{}"))
		}
	}
	return names
}

// numbers reads the parameters that are numbers, and checks the rest. All that
// are wrong are named at once.
func numbers(rt route, r *http.Request) (map[string]float64, error) {
	found := map[string]float64{}
	c := checker{}
	for _, name := range wildcards(rt.path) {
		if name != "turn" {
			continue
		}
		n, err := strconv.ParseInt(r.PathValue(name), 10, 32)
		if err != nil || n < 0 {
			c.add(name, "must be the number of a turn")
			continue
		}
		found[name] = float64(n)
	}
	query := r.URL.Query()
	for _, p := range rt.params {
		if p.in != "" || !query.Has(p.name) {
			continue
		}
		text := query.Get(p.name)
		var value any = text
		if p.typ == huma.TypeNumber || p.typ == huma.TypeInteger {
			n, err := strconv.ParseFloat(text, 64)
			if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
				c.add(p.name, "must be %s", article(p.typ))
				continue
			}
			found[p.name], value = n, n
		}
		c.check(p.name, p.schema(), value)
	}
	if len(c.problems) > 0 {
		p := invalid("invalid_parameter", "%s: %s", c.problems[0].Path, c.problems[0].Message)
		p.Fields = c.problems
		return nil, p
	}
	return found, nil
}

func (p param) schema() *huma.Schema {
	typ := p.typ
	if typ == "" {
		typ = huma.TypeString
	}
	return &huma.Schema{Type: typ, Enum: p.enum, Minimum: p.min, Maximum: p.max}
}

// pattern is the route a request takes, empty where there is none. The mux
// would redirect a path such as //runs to where it might have meant to go, with
// an answer in HTML; here it is no route.
func (s *server) pattern(r *http.Request) string {
	if path.Clean(r.URL.Path) != r.URL.Path {
		return ""
	}
	_, pattern := s.mux.Handler(r)
	return pattern
}

// allowed lists the methods that a path has, empty where it is no route.
func (s *server) allowed(r *http.Request) string {
	var has []string
	for _, method := range methods {
		other := r.Clone(r.Context())
		other.Method = method
		if s.pattern(other) != "" {
			has = append(has, method)
		}
	}
	if slices.Contains(has, http.MethodGet) {
		has = slices.Insert(has, 1, http.MethodHead)
	}
	return strings.Join(has, ", ")
}

func bound(n float64) *float64 { return &n }
