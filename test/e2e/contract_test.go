package e2e_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/alineod/alineod/internal/api/apitest"
)

// promised is the OpenAPI document of the program that is tested, once one of
// its daemons has answered.
var promised atomic.Pointer[apitest.Document]

var askPromised sync.Mutex

// contract holds everything that a daemon answers to its own OpenAPI document.
type contract struct {
	t    testing.TB
	next http.RoundTripper
}

func (c *contract) RoundTrip(r *http.Request) (*http.Response, error) {
	w, err := c.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	doc, err := c.document(r)
	if err != nil || strings.HasPrefix(w.Header.Get("Content-Type"), "text/event-stream") {
		return w, nil // the daemon was killed just now; the events are read elsewhere
	}
	var body []byte
	if strings.HasPrefix(w.Header.Get("Content-Type"), "application/json") {
		if body, err = io.ReadAll(w.Body); err != nil {
			w.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), broken{err}))
			return w, nil
		}
		w.Body.Close()
		w.Body = io.NopCloser(bytes.NewReader(body))
	}
	if err := doc.Answer(r.Method, r.URL.EscapedPath(), w.StatusCode, w.Header.Get("Content-Type"), body); err != nil {
		c.t.Error(err)
	}
	return w, nil
}

// broken is the rest of an answer that ended too soon.
type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

// document asks the daemon for it, if none has been asked before.
func (c *contract) document(r *http.Request) (*apitest.Document, error) {
	if doc := promised.Load(); doc != nil {
		return doc, nil
	}
	askPromised.Lock()
	defer askPromised.Unlock()
	if doc := promised.Load(); doc != nil {
		return doc, nil
	}
	ask, err := http.NewRequestWithContext(r.Context(), http.MethodGet, r.URL.Scheme+"://"+r.URL.Host+"/openapi.json", nil)
	if err != nil {
		return nil, err
	}
	w, err := c.next.RoundTrip(ask)
	if err != nil {
		return nil, err
	}
	defer w.Body.Close()
	if w.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", w.StatusCode)
	}
	doc, err := apitest.Parse(w.Body)
	if err == nil {
		promised.Store(doc)
	}
	return doc, err
}
