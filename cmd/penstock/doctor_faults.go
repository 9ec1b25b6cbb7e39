package main

import (
	"errors"
	"fmt"

	"github.com/penstock-gpu/penstock/faults"
)

// faultWays are the ways of seeing faults that the doctor answers for.
var faultWays = []string{"faults", "pid", "system"}

// faultAnswer says whether one way of seeing faults will work here.
type faultAnswer struct {
	For     string `json:"for"`
	Command string `json:"command"`
	Works   bool   `json:"works"`
	Why     string `json:"why,omitempty"` // why not
}

// checkLayout says whether the driver's event queue is one that was compared.
func checkLayout(m doctorMachine) doctorCheck {
	c := doctorCheck{Name: "event layout", Status: checkOK}
	v := m.kernelDriver()
	if v == "" {
		c.Status, c.Found = checkWarn, "not known without a driver"
		return c
	}
	l, known := faults.LayoutOf(v)
	c.Found = fmt.Sprintf("driver %s, as since %s", v, l.From)
	if !known {
		c.Status, c.Found = checkWarn, "driver "+v+" has not been compared; events that make no sense are counted as lost"
		c.Do = "drivers 535 to 595 are known"
	}
	return c
}

// checkTracing says whether other processes can be listened to (--pid).
func checkTracing(m doctorMachine) doctorCheck {
	c := doctorCheck{Name: "other processes", Status: checkOK, Found: "those of this user can be listened to (pidfd_getfd)"}
	if err := m.tracing(); err != nil {
		c.Status, c.Found = checkWarn, err.Error()
		var u *faults.Unavailable
		if errors.As(err, &u) {
			c.Found, c.Do = u.Why, u.WhatToDo
		}
	}
	return c
}

// faultAnswers sums up the checks for each way.
func faultAnswers(m doctorMachine, checks []doctorCheck) []faultAnswer {
	// The first of the named checks that stands in the way.
	problem := func(names ...string) string {
		for _, n := range names {
			for _, c := range checks {
				if c.Name == n && c.Status != checkOK {
					return c.Name + ": " + c.Found
				}
			}
		}
		return ""
	}
	all := []faultAnswer{
		{For: "faults", Command: "penstock faults record -- command", Why: problem("fault events", "hook library", "engine library")},
		{For: "pid", Command: "penstock faults record --pid", Why: problem("fault events", "other processes")},
		{For: "system", Command: "penstock faults record --system", Why: problem("eBPF probes")},
	}
	for i := range all {
		if all[i].Why == "" && m.wsl() {
			all[i].Why = "environment: WSL has no unified-memory driver of its own"
		}
		all[i].Works = all[i].Why == ""
	}
	return all
}
