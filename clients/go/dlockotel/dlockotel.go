// Package dlockotel records the locks of dlock with OpenTelemetry: a span for each acquisition, with the time waited and
// the fence, and metrics.
//
//	option, err := dlockotel.Instrument()
//	locks := dlock.New(rdb, option)
//
// The metrics are dlock.acquired, dlock.not_acquired and dlock.lost (counters), and dlock.wait and dlock.hold (histograms
// in s). The names of the locks are attributes of spans only, as there may be many.
package dlockotel

import (
	"context"
	"errors"
	"time"

	dlock "github.com/dlock/dlock/clients/go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

const scope = "github.com/dlock/dlock/clients/go/dlockotel"

// bounds are those of the histograms, in s. The default ones of OpenTelemetry are for ms.
var bounds = []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}

// An Option changes the providers of Instrument.
type Option func(*config)

type config struct {
	traces  trace.TracerProvider
	metrics metric.MeterProvider
}

// WithTracerProvider sets the provider of spans. The default is the global one.
func WithTracerProvider(p trace.TracerProvider) Option { return func(c *config) { c.traces = p } }

// WithMeterProvider sets the provider of metrics. The default is the global one.
func WithMeterProvider(p metric.MeterProvider) Option { return func(c *config) { c.metrics = p } }

// Instrument returns the option for [dlock.New] that records the acquisitions and holds of the client.
func Instrument(opts ...Option) (dlock.Option, error) {
	c := config{otel.GetTracerProvider(), otel.GetMeterProvider()}
	for _, opt := range opts {
		opt(&c)
	}
	tracer, meter := c.traces.Tracer(scope), c.metrics.Meter(scope)
	acquired, err1 := meter.Int64Counter("dlock.acquired", metric.WithDescription("locks acquired"))
	failed, err2 := meter.Int64Counter("dlock.not_acquired", metric.WithDescription("acquisitions that failed"))
	lost, err3 := meter.Int64Counter("dlock.lost", metric.WithDescription("holds lost"))
	wait, err4 := meter.Float64Histogram("dlock.wait", metric.WithUnit("s"), metric.WithDescription("time of an acquisition"),
		metric.WithExplicitBucketBoundaries(bounds...))
	hold, err5 := meter.Float64Histogram("dlock.hold", metric.WithUnit("s"), metric.WithDescription("time of a hold until its release"),
		metric.WithExplicitBucketBoundaries(append(bounds[:len(bounds):len(bounds)], 30, 60, 300)...))
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return nil, err
	}
	span := func(ctx context.Context, key string, waited time.Duration, attributes ...attribute.KeyValue) trace.Span {
		_, span := tracer.Start(ctx, "dlock.acquire", trace.WithSpanKind(trace.SpanKindClient),
			trace.WithTimestamp(time.Now().Add(-waited)),
			trace.WithAttributes(append(attributes, attribute.String("dlock.key", key), attribute.Float64("dlock.waited", waited.Seconds()))...))
		return span
	}
	return dlock.Traced(&dlock.Trace{
		Acquired: func(ctx context.Context, h *dlock.Hold, waited time.Duration) {
			span(ctx, h.Key(), waited, attribute.Int64("dlock.fence", h.Fence())).End()
			acquired.Add(ctx, 1)
			wait.Record(ctx, waited.Seconds())
		},
		NotAcquired: func(ctx context.Context, key string, waited time.Duration, err error) {
			span := span(ctx, key, waited)
			if !errors.Is(err, dlock.ErrNotAcquired) {
				span.RecordError(err)
				span.SetStatus(codes.Error, err.Error())
			}
			span.End()
			failed.Add(ctx, 1, metric.WithAttributes(attribute.String("reason", reason(err))))
			wait.Record(ctx, waited.Seconds())
		},
		Released: func(h *dlock.Hold, held time.Duration) { hold.Record(context.Background(), held.Seconds()) },
		Lost:     func(*dlock.Hold, error) { lost.Add(context.Background(), 1) },
	}), nil
}

// reason names the kind of an error: a few values, as it is an attribute of a metric.
func reason(err error) string {
	for _, known := range []struct {
		err  error
		name string
	}{
		{context.Canceled, "cancelled"}, {context.DeadlineExceeded, "timeout"}, {dlock.ErrNotAcquired, "taken"},
		{dlock.ErrDeadlock, "deadlock"}, {dlock.ErrGrace, "grace"}, {dlock.ErrNoAnswer, "no answer"}, {dlock.ErrQueueFull, "queue full"},
	} {
		if errors.Is(err, known.err) {
			return known.name
		}
	}
	return "error"
}
