// Package metrics offers a fault report as Prometheus metrics, to a server that
// is scraped and to a text file. Base units (bytes, seconds) and totals only.
//
// # Invariants
//
// Labels are bounded: causes, directions and phases come from fixed lists, and of
// kernels only the first [KernelLimit] that come into the table have a series of
// their own; the rest is kernel="(others)". A series never goes away and a
// counter never falls while the report grows.
//
// # Caveats
//
// A fault may change its cause when a late prefetch shows up, within a few
// milliseconds; the live report leaves its last moments out, so that a scrape
// does not see it. Addresses are no labels: allocations are left to the reports.
package metrics

import (
	"io"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/penstock-gpu/penstock/faults/analyse"
)

// KernelLimit is how many kernels have series of their own.
const KernelLimit = 50

// Collector is a prometheus.Collector of a report.
type Collector struct {
	report func() *analyse.Report

	mu    sync.Mutex
	known map[string]bool // kernels with series of their own
}

// New makes a collector; report is called at every scrape, and nil means that there is none yet.
func New(report func() *analyse.Report) *Collector {
	return &Collector{report: report, known: map[string]bool{}}
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("penstock_"+name, help, labels, nil)
}

var (
	up            = describe("recording_up", "1 when events are being read.")
	gpuFaults     = describe("gpu_page_faults_total", "GPU page faults, by cause.", "cause")
	copyFaults    = describe("copy_engine_page_faults_total", "GPU page faults raised by copy engines.")
	cpuFaults     = describe("cpu_page_faults_total", "CPU page faults on managed memory.")
	migrated      = describe("migrated_bytes_total", "Bytes migrated, by direction and the driver's reason.", "direction", "reason")
	resident      = describe("resident_bytes", "Managed memory on the GPU, as far as migrations show.")
	residentPeak  = describe("resident_peak_bytes", "The most managed memory there was on the GPU.")
	stall         = describe("fault_stall_seconds_total", "Time from faults until their bytes were there, overlaps counted once.")
	lost          = describe("lost_events_total", "Events that could not be read.")
	launches      = describe("launches_total", "Kernel launches seen.")
	wasted        = describe("wasted_prefetch_bytes_total", "Prefetched bytes that left again unused.")
	phaseFaults   = describe("phase_gpu_page_faults_total", "GPU page faults, by phase of the training iteration.", "phase")
	kernelFaults  = describe("kernel_gpu_page_faults_total", "GPU page faults, by kernel; beyond a limit as (others).", "kernel")
	kernelFetched = describe("kernel_faulted_bytes_total", "Bytes brought in by faults, by kernel.", "kernel")
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{up, gpuFaults, copyFaults, cpuFaults, migrated, resident, residentPeak, stall, lost, launches, wasted, phaseFaults, kernelFaults, kernelFetched} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	total := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	r := c.report()
	if r == nil {
		gauge(up, 0)
		return
	}
	gauge(up, 1)
	s := r.Summary
	for _, x := range r.Causes {
		total(gpuFaults, float64(x.Faults), x.Cause)
	}
	total(copyFaults, float64(s.CopyEngineFaults))
	total(cpuFaults, float64(s.CPUFaults))
	for _, m := range r.Migrations {
		total(migrated, float64(m.H2DBytes), "HtoD", m.Cause)
		total(migrated, float64(m.D2HBytes), "DtoH", m.Cause)
	}
	gauge(resident, float64(s.ResidentBytes))
	gauge(residentPeak, float64(s.ResidentPeakBytes))
	total(stall, s.StallSeconds)
	total(lost, float64(s.LostEvents))
	total(launches, float64(s.Launches))
	if r.Predictor.WastedBytes >= 0 {
		total(wasted, float64(r.Predictor.WastedBytes))
	}
	for _, p := range r.Phases {
		total(phaseFaults, float64(p.Faults), p.Phase)
	}
	c.kernels(r, total)
}

func (c *Collector) kernels(r *analyse.Report, total func(*prometheus.Desc, float64, ...string)) {
	const others = "(others)"
	var faults, bytes int64
	for _, k := range r.Kernels {
		name := strings.ToValidUTF8(k.Kernel, "?")
		if !c.known[name] {
			if k.Faults == 0 || len(c.known) >= KernelLimit || name == others {
				faults += k.Faults
				bytes += k.FaultedBytes
				continue
			}
			c.known[name] = true
		}
		total(kernelFaults, float64(k.Faults), name)
		total(kernelFetched, float64(k.FaultedBytes), name)
	}
	total(kernelFaults, float64(faults), others)
	total(kernelFetched, float64(bytes), others)
}

// WriteText writes a report as Prometheus' text format.
func WriteText(w io.Writer, r *analyse.Report) error {
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(New(func() *analyse.Report { return r })); err != nil {
		return err
	}
	families, err := registry.Gather()
	if err != nil {
		return err
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
			return err
		}
	}
	return nil
}
