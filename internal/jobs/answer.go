package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Format is the version of the line.
const Format = 1

// Answer is what a job says of itself.
type Answer struct {
	Format  int             `json:"format"`
	Version string          `json:"penstock"` // the library's
	PID     int             `json:"pid"`
	TakenAt float64         `json:"taken_at"` // seconds since 1970
	Stats   json.RawMessage `json:"stats"`    // those of penstock.stats()
}

// Stats are those of a job's figures that are shown. A figure that cannot be had is -1, or 0 where that is nothing.
type Stats struct {
	Process           string   `json:"process"`
	Engine            string   `json:"engine"`
	Policy            string   `json:"policy"`
	Failure           string   `json:"failure"`
	AllocatedBytes    float64  `json:"allocated_bytes"`
	ResidentBytes     float64  `json:"resident_bytes"`
	ResidentPeakBytes float64  `json:"resident_peak_bytes"`
	BudgetBytes       float64  `json:"budget_bytes"`
	HostBudgetBytes   float64  `json:"host_budget_bytes"`
	H2DBytes          float64  `json:"h2d_bytes"`
	D2HBytes          float64  `json:"d2h_bytes"`
	Faults            float64  `json:"faults"`
	Launches          float64  `json:"launches"`
	StallSeconds      float64  `json:"stall_seconds"`
	SpaceStallSeconds float64  `json:"space_stall_seconds"`
	LockWaitSeconds   float64  `json:"lock_wait_seconds"`
	PredictionHitRate float64  `json:"prediction_hit_rate"`
	IterationLaunches float64  `json:"iteration_launches"`
	IterationSeconds  float64  `json:"iteration_seconds"`
	InMemoryShare     float64  `json:"in_memory_share_estimated"`
	Explicit          Explicit `json:"explicit"`
}

// Explicit are those that only the explicit engine has; all are 0 under another.
type Explicit struct {
	FetchStallSeconds float64 `json:"fetch_stall_seconds"`
	MapStallSeconds   float64 `json:"map_stall_seconds"`
	GrantStallSeconds float64 `json:"grant_stall_seconds"`
	GuardWaits        float64 `json:"guard_waits"`
	CleanBytes        float64 `json:"clean_bytes"`
	DroppedBytes      float64 `json:"dropped_bytes"`
	MadeBytes         float64 `json:"made_bytes"`
	Makes             string  `json:"makes_again"`
	HostBytes         float64 `json:"host_bytes"`
	HostPinnedBytes   float64 `json:"host_pinned_bytes"`
}

// Job is an answer that has been read.
type Job struct {
	Answer
	Shown   Stats
	Command string // its command line; "" where that cannot be read
}

// FormatError is an answer in a format that this version does not know.
type FormatError struct {
	Format  int
	Version string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("it runs Penstock %.40q, whose answers have format %d, and this command reads format %d: use the penstock command that was installed with the job's", e.Version, e.Format, Format)
}

// parse reads a line.
func parse(line []byte) (j Job, err error) {
	if err := json.Unmarshal(line, &j.Answer); err != nil {
		return Job{}, fmt.Errorf("its answer is damaged: %w", err)
	}
	if j.Format != Format {
		return Job{}, &FormatError{j.Format, j.Version}
	}
	if len(j.Stats) == 0 || string(j.Stats) == "null" || j.PID <= 0 {
		return Job{}, errors.New("its answer has no statistics")
	}
	// Of what is not in an older or a newer job's, nothing is known.
	j.Shown = Stats{Faults: -1, PredictionHitRate: -1, InMemoryShare: -1}
	if err := json.Unmarshal(j.Stats, &j.Shown); err != nil {
		return Job{}, fmt.Errorf("its statistics are damaged: %w", err)
	}
	return j, nil
}
