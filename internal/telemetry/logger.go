// Package telemetry is how the daemon tells what it does: log lines and
// Prometheus metrics. What it tells passes a Redactor that knows the secrets
// of the moment.
//
// # Metrics
//
// Metric names begin with alineod_, durations are in seconds, sizes in bytes.
// No label ever holds an identifier: every label's values come from a small
// fixed set, so that a swarm of any size costs the same number of series.
package telemetry

import (
	"errors"
	"fmt"
	"io"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// ErrInvalid: a log level or format that is not known.
var ErrInvalid = errors.New("invalid logging option")

// NewLogger returns a logger that writes to w, one line per entry. level is
// debug, info, warn or error; format is json, console, or auto: console where
// w is a terminal. Give the option Redactor.Option to keep secrets out.
func NewLogger(level, format string, w io.Writer, isTerminal bool, opts ...zap.Option) (*zap.Logger, error) {
	l, err := zapcore.ParseLevel(level)
	if err != nil || l > zapcore.ErrorLevel {
		return nil, fmt.Errorf("%w: level %q; must be debug, info, warn or error", ErrInvalid, level)
	}
	enc := zapcore.EncoderConfig{
		TimeKey:        "ts",
		LevelKey:       "level",
		NameKey:        "logger",
		MessageKey:     "msg",
		StacktraceKey:  "stack",
		LineEnding:     zapcore.DefaultLineEnding,
		EncodeLevel:    zapcore.LowercaseLevelEncoder,
		EncodeTime:     utcMillis,
		EncodeDuration: zapcore.StringDurationEncoder,
	}
	var encoder zapcore.Encoder
	switch {
	case format == "json" || format == "auto" && !isTerminal:
		encoder = zapcore.NewJSONEncoder(enc)
	case format == "console" || format == "auto":
		enc.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		if isTerminal {
			enc.EncodeLevel = zapcore.CapitalColorLevelEncoder
		}
		encoder = zapcore.NewConsoleEncoder(enc)
	default:
		return nil, fmt.Errorf("%w: format %q; must be auto, json or console", ErrInvalid, format)
	}
	core := zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), l)
	// A stack trace at every error would drown what the error says; panics
	// bring their own.
	base := []zap.Option{zap.AddStacktrace(zapcore.DPanicLevel)}
	return zap.New(core, append(base, opts...)...), nil
}

// utcMillis writes times so that they sort as text, whatever the zone.
func utcMillis(t time.Time, enc zapcore.PrimitiveArrayEncoder) {
	enc.AppendString(t.UTC().Format("2006-01-02T15:04:05.000Z"))
}
