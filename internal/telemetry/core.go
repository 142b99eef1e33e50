package telemetry

import (
	"fmt"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Option has a logger redact its messages and fields.
func (r *Redactor) Option() zap.Option {
	return zap.WrapCore(func(c zapcore.Core) zapcore.Core { return &redactingCore{Core: c, redactor: r} })
}

// redactingCore redacts entries before they are encoded. It works on values
// and not on the finished line, so that a secret that looks like a number or a
// key does not break the line's JSON.
//
// Fields of With are kept and redacted at each entry: a secret may become
// known after the logger was made.
type redactingCore struct {
	zapcore.Core
	redactor *Redactor
	fields   []zapcore.Field
}

func (c *redactingCore) With(fields []zapcore.Field) zapcore.Core {
	kept := make([]zapcore.Field, 0, len(c.fields)+len(fields))
	kept = append(append(kept, c.fields...), fields...)
	return &redactingCore{Core: c.Core, redactor: c.redactor, fields: kept}
}

func (c *redactingCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *redactingCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	e.Message = c.redactor.String(e.Message)
	e.LoggerName = c.redactor.String(e.LoggerName)
	e.Stack = c.redactor.String(e.Stack)
	all := make([]zapcore.Field, 0, len(c.fields)+len(fields))
	for _, f := range c.fields {
		all = append(all, c.field(f))
	}
	for _, f := range fields {
		all = append(all, c.field(f))
	}
	if err := c.Core.Write(e, all); err != nil {
		return fmt.Errorf("writing a log line: %w", err)
	}
	return nil
}

// field redacts one field. Anything but plain numbers is first turned into
// what would be written, then searched.
func (c *redactingCore) field(f zapcore.Field) zapcore.Field {
	switch f.Type {
	case zapcore.StringType:
		f.String = c.redactor.String(f.String)
		return f
	case zapcore.BoolType, zapcore.DurationType, zapcore.TimeType, zapcore.TimeFullType,
		zapcore.Float64Type, zapcore.Float32Type, zapcore.Complex128Type, zapcore.Complex64Type,
		zapcore.Int64Type, zapcore.Int32Type, zapcore.Int16Type, zapcore.Int8Type,
		zapcore.Uint64Type, zapcore.Uint32Type, zapcore.Uint16Type, zapcore.Uint8Type, zapcore.UintptrType,
		zapcore.NamespaceType, zapcore.SkipType:
		return f
	case zapcore.ErrorType:
		// zap adds an errorVerbose of errors that format themselves at length;
		// the plain text is enough, and is the one that is redacted.
		if err, ok := f.Interface.(error); ok && err != nil {
			return zap.String(f.Key, c.redactor.String(errorText(err)))
		}
	case zapcore.ByteStringType:
		if b, ok := f.Interface.([]byte); ok {
			return zap.String(f.Key, c.redactor.String(string(b)))
		}
	}
	enc := zapcore.NewMapObjectEncoder()
	f.AddTo(enc)
	fields := make([]zapcore.Field, 0, len(enc.Fields))
	for key, value := range enc.Fields {
		fields = append(fields, zap.Reflect(key, c.value(value)))
	}
	if len(fields) == 1 {
		return fields[0]
	}
	return zap.Inline(objectOf(fields)) // an inlined object, or a marshaler's error beside it
}

// value redacts what a field holds once it is encoded.
func (c *redactingCore) value(v any) any {
	switch v := v.(type) {
	case string:
		return c.redactor.String(v)
	case []byte:
		return c.redactor.String(string(v))
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, item := range v {
			out[c.redactor.String(key)] = c.value(item)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = c.value(item)
		}
		return out
	case bool, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, uintptr, float32, float64, nil:
		return v
	}
	return c.reflected(v)
}

// errorText is err's text. A nil pointer that claims to be an error must not
// bring the daemon down for the sake of a log line.
func errorText(err error) (text string) {
	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprintf("error of type %T has no text: %v", err, r)
		}
	}()
	return err.Error()
}

type objectOf []zapcore.Field

func (o objectOf) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	for _, f := range o {
		f.AddTo(enc)
	}
	return nil
}
