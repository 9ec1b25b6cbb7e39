package plan

import "fmt"

// Job says what a plan was made for. Empty fields say nothing.
type Job struct {
	Command string `json:"command,omitempty"` // the command line
	GPU     string `json:"gpu,omitempty"`
}

// MismatchError says that a plan is for another job.
type MismatchError struct{ What, Planned, Actual string }

func (e *MismatchError) Error() string {
	return fmt.Sprintf("the plan was made for another %s (%q, this is %q): make a plan for this job with `penstock plan`", e.What, e.Planned, e.Actual)
}

// Matches says whether the plan is for this job: a *MismatchError names the first
// difference. What either side does not say is not compared.
func (p *Plan) Matches(job Job) error {
	for _, f := range []struct{ what, planned, actual string }{
		{"command", p.Job.Command, job.Command},
		{"GPU", p.Job.GPU, job.GPU},
	} {
		if f.planned != "" && f.actual != "" && f.planned != f.actual {
			return &MismatchError{f.what, f.planned, f.actual}
		}
	}
	return nil
}
