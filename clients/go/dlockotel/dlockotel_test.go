package dlockotel_test

import (
	"context"
	"testing"
	"time"

	dlock "github.com/dlock/dlock/clients/go"
	"github.com/dlock/dlock/clients/go/dlockotel"
	"github.com/dlock/dlock/clients/go/internal/testserver"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

func TestSpansAndMetricsAreRecorded(t *testing.T) {
	ctx := context.Background()
	programs := testserver.Programs()
	if len(programs) == 0 {
		t.Skip("set DLOCK_TEST_SERVERS and DLOCK_TEST_MODULE, or run scripts/test-go.sh")
	}
	s := testserver.Start(programs[0].Program)
	defer s.Stop()
	spans, metrics := tracetest.NewSpanRecorder(), metric.NewManualReader()
	option, err := dlockotel.Instrument(
		dlockotel.WithTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(spans))),
		dlockotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(metrics))))
	if err != nil {
		t.Fatal(err)
	}
	rdb := s.Client()
	defer rdb.Close()
	locks := dlock.New(rdb, option)
	h, err := locks.Acquire(ctx, "lock")
	if err != nil {
		t.Fatal(err)
	}
	locks.TryAcquire(ctx, "lock")
	h.Release(ctx)
	h, _ = locks.Acquire(ctx, "lock")
	locks.Break(ctx, "lock")
	h.Held(ctx)
	h, _ = locks.Acquire(ctx, "lock", dlock.NoRenew())
	locks.Break(ctx, "lock")
	h.Release(ctx) // finds the loss, if the client has not found it
	// A grant that is not durable is no acquisition.
	locks.Acquire(ctx, "lock", dlock.Durable(1, time.Millisecond))

	if ended := spans.Ended(); len(ended) != 5 || ended[0].Name() != "dlock.acquire" {
		t.Fatal(ended)
	}
	var data metricdata.ResourceMetrics
	if err := metrics.Collect(ctx, &data); err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, m := range data.ScopeMetrics[0].Metrics {
		switch d := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, of := range d.DataPoints { // one for each reason
				got[m.Name] += float64(of.Value)
			}
		case metricdata.Histogram[float64]:
			got[m.Name] = float64(d.DataPoints[0].Count)
			if bounds := d.DataPoints[0].Bounds; bounds[0] != 0.005 || bounds[13] != 10 || (len(bounds) == 17) != (m.Name == "dlock.hold") {
				t.Error(m.Name, bounds)
			}
		}
	}
	for name, want := range map[string]float64{"dlock.acquired": 3, "dlock.not_acquired": 2, "dlock.lost": 2, "dlock.wait": 5, "dlock.hold": 1} {
		if got[name] != want {
			t.Errorf("%s: %v, not %v", name, got[name], want)
		}
	}
}
