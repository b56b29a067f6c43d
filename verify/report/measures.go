package report

import (
	"fmt"
	"strings"

	"dsmoe/text"
)

// Exceeded returns the measures that are beyond their limits. A check that failed for another
// reason has none.
func (c *Check) Exceeded() (beyond []Measure) {
	l := c.Limits
	if l == nil || c.Reason != "" {
		return nil
	}
	for _, m := range []Measure{
		{"z", c.Z, l.Z}, {"rms_z", c.RMSZ, l.RMSZ}, {"row_z", c.RowZ, l.RowZ}, {"column_z", c.ColumnZ, l.ColumnZ},
		{"neuron_z", c.NeuronZ, l.NeuronZ},
		{"rel_rms", c.RelRMS, l.RelRMS}, {"row_rms", c.RowRMS, l.RowRMS}, {"max_rms", c.MaxRMS, l.MaxRMS},
	} {
		if m.Limit > 0 && (m.Value == nil || !(*m.Value <= m.Limit)) {
			beyond = append(beyond, m)
		}
	}
	return beyond
}

// inSigmas reports whether the check measured standard deviations of rounding errors.
func (c *Check) inSigmas() bool { return c.Limits != nil && c.Limits.Z > 0 && c.Reason == "" }

// failureText is one line: the reason of the failure, or each measure beyond its limit. It is empty if the check
// did not fail.
func (c *Check) failureText() string {
	if c.Reason != "" {
		return c.Reason
	}
	var words []string
	for _, m := range c.Failed {
		words = append(words, fmt.Sprintf("%s %s, limit %s", c.measureName(m.Name), orInfinite(m.Value),
			text.Figure("%.3g", m.Limit)))
	}
	return strings.Join(words, "; ")
}

// measureName is a measure's name for people.
func (c *Check) measureName(key string) string {
	switch key {
	case "rms_z":
		return "RMS of z"
	case "row_z":
		return "RMS of z in a row"
	case "column_z":
		return "RMS of z in a column"
	case "neuron_z":
		return "z of a neuron"
	case "rel_rms":
		return "rel RMS"
	case "row_rms":
		return fmt.Sprintf("rel RMS of row %d", c.WorstRow)
	case "max_rms":
		return "max/RMS"
	}
	return key
}
