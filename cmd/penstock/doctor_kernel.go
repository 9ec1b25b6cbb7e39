package main

import (
	"strings"

	"github.com/penstock-gpu/penstock/faults/bpf"
)

// checkProbes says whether faults of all processes can be watched with eBPF.
func checkProbes(m doctorMachine) doctorCheck {
	c := doctorCheck{Name: "eBPF probes", Status: checkOK, Found: "faults of all processes can be watched"}
	var lacks []string
	for _, n := range m.probeNeeds() {
		switch {
		case n.Problem == "":
		case n.Optional:
			lacks = append(lacks, n.Problem)
		default:
			c.Status, c.Found, c.Do = checkWarn, n.What+": "+n.Problem, n.WhatToDo+" (only for watching all processes)"
			return c
		}
	}
	if len(lacks) > 0 {
		c.Found += "; " + strings.Join(lacks, "; ")
	}
	return c
}

// checkPatch says whether the driver carries kmod-patch. Doing without is the rule.
func checkPatch(m doctorMachine) []doctorCheck {
	patched, err := m.patched()
	if err != nil {
		return nil // no driver, or no right to open it: other checks say so
	}
	c := doctorCheck{Name: "driver patch", Status: checkOK, Found: "not in this driver; it is optional (kmod-patch/README.md)"}
	if patched {
		c.Found = "in this driver: evictions do without the pass that maps pages for the CPU"
	}
	return []doctorCheck{c}
}

func (realMachine) probeNeeds() []bpf.Need { return bpf.Needs(bpf.Options{}) }
