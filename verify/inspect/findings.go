package inspect

import (
	"fmt"
	"io"
)

// maxLines is how many lines of findings a report spells out.
const maxLines = 50

// group is findings that differ only in the tensor and, if the config's weights are
// what they are about, in the file.
type group struct {
	Finding
	names []string
}

// groups puts findings together, in the order of the first of each group.
func groups(findings []Finding) []group {
	var all []group
	at := map[Finding]int{}
	for _, f := range findings {
		name := f.Tensor
		f.Tensor = ""
		if f.Kind != Broken && f.Kind != Note {
			f.File = ""
		}
		i, ok := at[f]
		if !ok {
			i = len(all)
			at[f] = i
			all = append(all, group{Finding: f})
		}
		if name != "" {
			all[i].names = append(all[i].names, name)
		}
	}
	return all
}

// lines returns a line per pattern of names, "missing: FILE: NAME: cause".
func (g *group) lines() []string {
	prefix := string(g.Kind) + ": "
	if g.File != "" {
		prefix += plain(g.File) + ": "
	}
	if len(g.names) == 0 {
		return []string{prefix + g.Cause}
	}
	var lines []string
	for _, p := range fold(g.names) {
		name := plain(p.text)
		if len(p.names) > 1 {
			name += fmt.Sprintf(" (%s tensors)", grouped(len(p.names)))
		}
		lines = append(lines, prefix+name+": "+g.Cause)
	}
	return lines
}

// writeFindings writes at most limit lines, each hint below the last line it is for.
func writeFindings(w io.Writer, findings []Finding, limit int) error {
	var lines, hints []string
	for _, g := range groups(findings) {
		for _, line := range g.lines() {
			lines, hints = append(lines, line), append(hints, g.Hint)
		}
	}
	for i, line := range lines[:min(limit, len(lines))] {
		if h := hints[i]; h != "" && (i+1 == min(limit, len(lines)) || hints[i+1] != h) {
			line += "\n    hint: " + h
		}
		if _, err := fmt.Fprintln(w, "  "+line); err != nil {
			return err
		}
	}
	if more := len(lines) - limit; more > 0 {
		_, err := fmt.Fprintf(w, "  … and %d more; dsmoe inspect audit --json lists every finding\n", more)
		return err
	}
	return nil
}
