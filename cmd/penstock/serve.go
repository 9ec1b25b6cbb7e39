package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/faults/metrics"
	"github.com/penstock-gpu/penstock/faults/watch"
)

// newServeCommand is `penstock serve`.
func newServeCommand() *cobra.Command {
	var pid, listen string
	var system bool
	cmd := &cobra.Command{
		Use:   "serve (FILE | --pid P | --system)",
		Short: "Offer faults and migrations to Prometheus",
		Long: `Watch a recording that is being written, a running process, or all processes, and
offer what is seen as Prometheus metrics at http://ADDRESS/metrics. Only this
machine can ask: put a server of your own in front to offer it to others.
docs/grafana-faults.json is a dashboard for it.`,
		Example: `  penstock serve --pid 4711
  penstock serve faults.pstrace --listen 127.0.0.1:9400`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := context.WithCancel(cmd.Context())
			defer stop()
			if err := loopback(listen); err != nil {
				return err
			}
			w, err := watched(ctx, args, pid, system)
			if err != nil {
				return err
			}
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return fmt.Errorf("--listen: %w", err)
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "penstock: metrics are at http://%s/metrics\n", l.Addr())
			return serve(ctx, l, w)
		},
	}
	textFlag(cmd, &pid, "pid")
	boolFlag(cmd, &system, "system")
	textFlag(cmd, &listen, "listen")
	return cmd
}

// loopback refuses addresses that others can reach.
func loopback(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || port == "" {
		return fmt.Errorf("--listen: %q is not an address: write it as 127.0.0.1:9464", address)
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("--listen: %q is not on this machine's loopback: use 127.0.0.1, and a server of your own in front to offer it to others", address)
}

// serve answers until ctx ends. When watching fails it says why.
func serve(ctx context.Context, l net.Listener, w *watch.Watch) error {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(metrics.New(func() *analyse.Report {
		r, _ := w.Report()
		if w.Waiting() || w.Err() != nil && r.Events == 0 {
			return nil
		}
		return r
	}))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: 4}))
	mux.HandleFunc("/", func(out http.ResponseWriter, q *http.Request) {
		if q.URL.Path != "/" {
			http.NotFound(out, q)
			return
		}
		fmt.Fprintln(out, "penstock: see /metrics")
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	stop := func() {
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = server.Shutdown(closing)
	}
	done := w.Done()
	for {
		select {
		case <-ctx.Done():
			stop()
			return nil
		case <-done:
			if r, _ := w.Report(); w.Err() != nil && r.Events == 0 {
				stop()
				return w.Err()
			}
			done = nil // the process has ended; its sums stay to be read
		case err := <-failed:
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return err
		}
	}
}
