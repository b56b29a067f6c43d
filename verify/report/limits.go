package report

import (
	"fmt"

	"dsmoe/text"
)

// Limits are what the measures of a check may be at most. Zero is no limit.
type Limits struct {
	Z       float64 `json:"z,omitzero"`        // of Check.Z: 8
	RMSZ    float64 `json:"rms_z,omitzero"`    // of Check.RMSZ: 1
	RowZ    float64 `json:"row_z,omitzero"`    // of Check.RowZ: 3
	ColumnZ float64 `json:"column_z,omitzero"` // of Check.ColumnZ: 1 + 4/√distinct rows
	NeuronZ float64 `json:"neuron_z,omitzero"` // of Check.NeuronZ: 6
	RelRMS  float64 `json:"rel_rms,omitzero"`  // of Metrics.RelRMS
	RowRMS  float64 `json:"row_rms,omitzero"`  // of Metrics.RowRMS
	MaxRMS  float64 `json:"max_rms,omitzero"`  // of Metrics.MaxRMS
	// Factor is the user's: on standard deviations, or on limits of Metrics. 0 if the
	// limits are the tool's own.
	Factor float64 `json:"factor,omitzero"`
	From   string  `json:"from"` // why these
}

// String says why the limits are these, and what they are.
func (l *Limits) String() string {
	if l.Z == 0 {
		figure := func(limit float64) string { return text.Figure("%.2g", limit) }
		if l.RowRMS == 0 {
			return l.From
		}
		return fmt.Sprintf("%s: rel RMS ≤ %s, a row's ≤ %s, max/RMS ≤ %s", l.From, figure(l.RelRMS), figure(l.RowRMS), figure(l.MaxRMS))
	}
	return l.From
}

// LimitsOf lists the distinct reasons of the limits that were applied, and what they are.
func LimitsOf(checks []Check) []string {
	from, seen := []string{}, map[string]bool{}
	for _, c := range checks {
		if c.Limits == nil || seen[c.Limits.From] {
			continue
		}
		seen[c.Limits.From] = true
		from = append(from, c.Limits.String())
	}
	return from
}
