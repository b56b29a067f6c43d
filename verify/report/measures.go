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
		{"neuron_z", c.NeuronZ, l.NeuronZ}, {"rounding_rms", c.RoundingRMS, l.RoundingRMS}, {"slope", c.Slope, l.Slope},
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

// failureText is one line: how far the golden is off, then each measure beyond its limit, or the reason of a failure
// that no measure shows, then the rows. It is empty if the check did not fail.
func (c *Check) failureText() string { return strings.Join(c.failureLines(), "; ") }

// failureLines are the parts of failureText.
func (c *Check) failureLines() (lines []string) {
	if c.Rows != "" {
		defer func() { lines = append(lines, c.Rows) }()
	}
	if c.Reason != "" {
		return []string{c.Reason}
	}
	if off := c.offText(); len(c.Failed) > 0 && off != "" {
		lines = append(lines, off)
	}
	var beyond []string
	for _, m := range c.Failed {
		beyond = append(beyond, fmt.Sprintf("%s %s, limit %s", c.measureName(m.Name), orInfinite(m.Value),
			text.Figure("%.3g", m.Limit)))
	}
	if beyond != nil {
		lines = append(lines, strings.Join(beyond, "; "))
	}
	return lines
}

// offText says how far the golden is off, in shares of its RMS and at most; empty if that was not measured, or is 0.
func (c *Check) offText() string {
	if c.MaxAbs == nil || *c.MaxAbs == 0 {
		return ""
	}
	most := "at most " + text.Figure("%.2g", *c.MaxAbs)
	if len(c.MaxAbsIndex) > 0 {
		most += fmt.Sprintf(" at %v", c.MaxAbsIndex)
	}
	if c.RelRMS == nil {
		return "off by " + most + ", where the golden is all 0"
	}
	format, share, of := "%.2g", 100**c.RelRMS, "% of"
	switch {
	case *c.RelRMS >= 10:
		format, share, of = "%.3g", *c.RelRMS, "times"
	case *c.RelRMS >= 0.1:
		format = "%.0f"
	}
	return fmt.Sprintf("off by %s %s its RMS, %s", text.Figure(format, share), of, most)
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
	case "rounding_rms":
		return "RMS in standard deviations of rounding"
	case "slope":
		return "slope of differences over values"
	case "rel_rms":
		return "rel RMS"
	case "row_rms":
		return fmt.Sprintf("rel RMS of row %d", c.WorstRow)
	case "max_rms":
		return "max/RMS"
	}
	return key
}
