package swarm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/alineod/alineod/internal/ledger"
	"github.com/alineod/alineod/internal/spec"
)

// withKey makes the record of a request's key, to be stored in the transaction
// that carries the request out. It is nil for a request without one.
type withKey func(answer any) *ledger.Request

// idempotent carries a request out once: a repetition of its key gets the first
// answer. do must put the record into the batch that makes the request good.
func idempotent[T any](ctx context.Context, s *Swarm, idem Idempotency, do func(withKey) (T, error)) (T, error) {
	if idem.Key == "" {
		return do(func(any) *ledger.Request { return nil })
	}
	if who := actor(ctx); who != "" {
		idem.Scope += " by " + who // it learns nothing of others' requests
	}
	if v, found, err := replay[T](ctx, s, idem); found || err != nil {
		return v, err
	}
	v, err := do(func(answer any) *ledger.Request {
		b, err := json.Marshal(answer)
		if err != nil { // our own types: cannot be
			panic(fmt.Sprintf("marshalling an answer: %v", err))
		}
		return &ledger.Request{Scope: idem.Scope, Key: idem.Key, BodyHash: idem.BodyHash, Answer: b}
	})
	if errors.Is(err, ledger.ErrDuplicate) { // two at the same moment
		v, _, err := replay[T](ctx, s, idem)
		return v, err
	}
	return v, clientError(err)
}

// kept carries out what is harmless to do twice, and keeps the answer under the
// request's key when it is done: a daemon that dies before that does it again.
func kept[T any](ctx context.Context, s *Swarm, idem Idempotency, do func() (T, error)) (T, error) {
	return idempotent(ctx, s, idem, func(key withKey) (T, error) {
		v, err := do()
		if req := key(v); err == nil && req != nil {
			_, err = s.Ledger.Append(context.WithoutCancel(ctx), ledger.Batch{Request: req})
		}
		return v, err
	})
}

// once carries out what must not be done twice: the key is stored before, the
// answer after. Where a crash came between the two, nobody knows the answer.
func once[T any](ctx context.Context, s *Swarm, idem Idempotency, do func() (T, error)) (T, error) {
	if idem.Key == "" {
		return do()
	}
	answered := idem
	answered.Scope += " answered"
	var zero T
	begun, err := idempotent(ctx, s, idem, func(key withKey) (bool, error) {
		_, err := s.Ledger.Append(ctx, ledger.Batch{Request: key(true)})
		return false, err
	})
	if err != nil {
		return zero, err
	}
	if begun {
		v, found, err := replay[T](ctx, s, answered)
		if err == nil && !found {
			err = &Error{Kind: ErrConflict, Code: "outcome_unknown",
				Message: "this was begun under the same idempotency key and has not ended, or the daemon ended first; it is not done again"}
		}
		return v, err
	}
	return kept(ctx, s, answered, do)
}

func replay[T any](ctx context.Context, s *Swarm, idem Idempotency) (v T, found bool, err error) {
	stored, err := s.Ledger.Request(ctx, idem.Scope, idem.Key)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return v, false, nil
	case err != nil:
		return v, false, err
	case stored.BodyHash != idem.BodyHash:
		return v, true, clientError(ledger.ErrKeyReused)
	}
	return v, true, json.Unmarshal(stored.Answer, &v)
}

// clientError gives errors of lower rooms the kind that a client is answered
// with.
func clientError(err error) error {
	switch {
	case errors.Is(err, ledger.ErrKeyReused):
		return &Error{Kind: ErrConflict, Code: "key_reused", Message: "this idempotency key was used with a different body"}
	case errors.Is(err, ledger.ErrConflict):
		return &Error{Kind: ErrConflict, Code: "conflict", Message: err.Error()}
	}
	return err
}

func invalid(path, message string) error {
	return &Error{Kind: ErrInvalid, Code: "invalid", Message: path + ": " + message,
		Fields: []spec.Problem{{Path: path, Message: message}}}
}
