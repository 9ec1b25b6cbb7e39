// Package gpuinfo reads device facts from NVML: names, memory, the PCIe link
// and how busy it is. The CUDA driver does not tell these, or only about the
// calling process.
//
// Open loads libnvidia-ml.so.1; where it is missing the error is *Unavailable
// and says what to do. Every fact is optional: a device that does not answer
// one question still answers the others, and an unknown number is 0, left out
// of JSON and never printed as a fact.
//
// A Session may be used from several threads. It takes no lock of its own;
// NVML has them.
//
// # Caveats
//
//   - NVML counts devices of the machine, not those of CUDA_VISIBLE_DEVICES, and
//     in PCI order. Match by UUID, never by index.
//   - UsedBytes counts all processes and the driver itself.
//   - The current PCIe generation drops while the GPU idles; the maximum is what
//     the link can do under load.
//   - Reading the PCIe counters takes 20 ms of sampling inside NVML.
//   - The NVML binding leaves its symbols to be bound on first use. It is for
//     commands. A shared library that another program may load with RTLD_NOW,
//     such as libpenstock.so, must not import this package: it would not load
//     on a machine without NVML.
package gpuinfo
