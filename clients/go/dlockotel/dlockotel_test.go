package dlockotel_test

import (
	"context"
	"testing"

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

	if ended := spans.Ended(); len(ended) != 3 || ended[0].Name() != "dlock.acquire" {
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
			got[m.Name] = float64(d.DataPoints[0].Value)
		case metricdata.Histogram[float64]:
			got[m.Name] = float64(d.DataPoints[0].Count)
		}
	}
	for name, want := range map[string]float64{"dlock.acquired": 2, "dlock.not_acquired": 1, "dlock.lost": 1, "dlock.wait": 3, "dlock.hold": 1} {
		if got[name] != want {
			t.Errorf("%s: %v, not %v", name, got[name], want)
		}
	}
}
