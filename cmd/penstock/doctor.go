package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Status of one thing the doctor looked at.
type checkStatus string

// The three statuses. Only "missing" may keep the managed engine from running,
// and only in a check that is marked as required.
const (
	checkOK      checkStatus = "ok"
	checkWarn    checkStatus = "warn"
	checkMissing checkStatus = "missing"
)

// doctorCheck is one line of the doctor's report.
type doctorCheck struct {
	Name     string      `json:"name"`
	Status   checkStatus `json:"status"`
	Found    string      `json:"found"`
	Do       string      `json:"do,omitempty"` // what to do about it
	Required bool        `json:"required"`     // for the managed engine
}

// diagnosis is everything `penstock doctor` says.
type diagnosis struct {
	Version       string `json:"version"`
	ManagedEngine bool   `json:"managed_engine"` // it can run here
	Why           string `json:"why,omitempty"`  // why not, in one line
	// ExplicitEngine says that the explicit engine can run here, WhyNotExplicit why not.
	ExplicitEngine bool          `json:"explicit_engine"`
	WhyNotExplicit string        `json:"why_not_explicit,omitempty"`
	Faults         []faultAnswer `json:"faults"` // which ways of seeing faults there are
	Checks         []doctorCheck `json:"checks"`
}

// exitDoctor ends the command with status 1, which is an answer and not an
// error: nothing more is to be printed. A variable for tests.
var exitDoctor = os.Exit

// machine is what the doctor looks at. A variable for tests.
var machine doctorMachine = realMachine{}

// What the exit status can answer for, besides the ways of seeing faults.
const (
	purposeEngine   = "engine" // one of the two, as penstock run takes them
	purposeExplicit = "explicit"
	purposeManaged  = "managed"
)

// newDoctorCommand is `penstock doctor`.
func newDoctorCommand() *cobra.Command {
	var asJSON bool
	var purpose string
	var job jobFlags
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can do, and why not",
		Long: `Look at the driver, the devices and their unified memory, the driver's event
queue, Penstock's own libraries and Python, and have the launch hook tested by
launches of nothing. Nothing is changed and no device memory is used. The exit status is 0 when
what --for names will work here, and 1 when it will not: engine (penstock run, with
either engine), explicit and managed (penstock run --engine of that name),
faults (penstock faults record -- command), pid (--pid) or system (--system).

With --job or --params nothing of this is looked at, but how much memory of the card and of
the host a job will need under the explicit engine at a budget. The exit status is 0 when it is here.`,
		Example: `  penstock doctor
  penstock doctor --job run.pstrace --budget 24GiB
  penstock doctor --params 8e9 --dtype bf16 --optimizer adamw --budget 24GiB`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if known := append([]string{purposeEngine, purposeExplicit, purposeManaged}, faultWays...); !slices.Contains(known, purpose) {
				return fmt.Errorf("--for: %q is unknown: choose one of %s", purpose, strings.Join(known, ", "))
			}
			out := cmd.OutOrStdout()
			switch asked, err := job.given(cmd); {
			case err != nil:
				return err
			case asked:
				n, err := job.needs(cmd.Context(), machine, cmd.ErrOrStderr())
				if err != nil {
					return err
				}
				if asJSON {
					err = writeJSON(out, n)
				} else {
					err = writeNeeds(out, n)
				}
				if err == nil && !n.Enough {
					exitDoctor(1)
				}
				return err
			}
			d := diagnose(cmd.Context(), machine)
			if err := writeDiagnosis(out, d, asJSON); err != nil {
				return fmt.Errorf("cannot write the report: %w", err)
			}
			if !d.works(purpose) {
				exitDoctor(1)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON instead of a table")
	textFlag(cmd, &purpose, "for")
	job.add(cmd)
	return cmd
}

func writeDiagnosis(w io.Writer, d diagnosis, asJSON bool) error {
	if asJSON {
		return writeJSON(w, d)
	}
	width := 0
	for _, c := range d.Checks {
		width = max(width, len(c.Name))
	}
	var b strings.Builder
	for _, c := range d.Checks {
		fmt.Fprintf(&b, "%-7s  %-*s  %s\n", c.Status, width, c.Name, c.Found)
		if c.Do != "" {
			fmt.Fprintf(&b, "%-7s  %-*s  -> %s\n", "", width, "", c.Do)
		}
	}
	if d.ExplicitEngine {
		b.WriteString("\nThe explicit engine can run here: penstock run takes it.\n")
	} else {
		fmt.Fprintf(&b, "\nThe explicit engine cannot run here: %s.\n", d.WhyNotExplicit)
	}
	if d.ManagedEngine {
		b.WriteString("The managed engine can run here.\n")
	} else {
		fmt.Fprintf(&b, "The managed engine cannot run here: %s.\n", d.Why)
	}
	for _, f := range d.Faults {
		if f.Works {
			fmt.Fprintf(&b, "%s can see faults here.\n", f.Command)
		} else {
			fmt.Fprintf(&b, "%s cannot see faults here: %s.\n", f.Command, f.Why)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// works says whether what was asked for will work here.
func (d *diagnosis) works(purpose string) bool {
	for _, f := range d.Faults {
		if f.For == purpose {
			return f.Works
		}
	}
	switch purpose {
	case purposeExplicit:
		return d.ExplicitEngine
	case purposeManaged:
		return d.ManagedEngine
	}
	return d.ExplicitEngine || d.ManagedEngine
}
