package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"

	"dsmoe/text"
	"dsmoe/text/page"
)

// About is what a caller knows of a run beside its report: WriteJUnit and WriteHTML show it.
type About struct {
	Name     string      // of what was verified, in one line; a CI tells runs apart by it
	Duration float64     // of the run, in seconds
	Facts    []page.Fact // paths and versions
	Files    *text.Sheet // the checkpoint's files with their hashes; may be nil
}

// Unfinished is the report of a run that ended with an error: inconclusive, for that reason.
func Unfinished(err error) *Report {
	return &Report{Verdict: Inconclusive, Reasons: []string{err.Error()}, unfinished: true}
}

// The elements of a JUnit document, as far as they are used here: those that Jenkins'
// junit-10.xsd and GitLab know alike.
type (
	junitSuites struct {
		XMLName  xml.Name   `xml:"testsuites"`
		Name     string     `xml:"name,attr"`
		Time     string     `xml:"time,attr"` // seconds
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Errors   int        `xml:"errors,attr"`
		Suite    junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name       string          `xml:"name,attr"`
		Tests      int             `xml:"tests,attr"`
		Failures   int             `xml:"failures,attr"`
		Errors     int             `xml:"errors,attr"`
		Skipped    int             `xml:"skipped,attr"`
		Time       string          `xml:"time,attr"`
		Properties []junitProperty `xml:"properties>property,omitempty"`
		Cases      []junitCase     `xml:"testcase"`
		Out        *junitText      `xml:"system-out"`
	}
	junitProperty struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	}
	junitCase struct {
		Name    string       `xml:"name,attr"`
		Class   string       `xml:"classname,attr"`
		Failure *junitResult `xml:"failure"`
		Error   *junitResult `xml:"error"`
		Skipped *junitResult `xml:"skipped"`
	}
	junitResult struct {
		Type    string `xml:"type,attr"`
		Message string `xml:"message,attr"`
		Text    string `xml:",cdata"`
	}
	junitText struct {
		Text string `xml:",cdata"`
	}
)

// WriteJUnit writes the report as a JUnit document: a test case per golden tensor, and one
// for the verdict, and for that of another trace. A check that failed is a failure with its measures; one that was not
// judged is skipped, and so is one that the user accepts: its message names the cause. The verdict's case is a failure if a check failed, with the cause, and
// an error if the run is inconclusive, with the reasons, skipped if a part has nothing to verify: only a pass is green.
//
// A case has no time of its own, since stages are not timed.
func (r *Report) WriteJUnit(w io.Writer, about About) error {
	var accepted facts
	r.writeAccepted(&accepted)
	s := junitSuite{Name: text.Line(about.Name), Time: fmt.Sprintf("%.3f", about.Duration)}
	for _, f := range slices.Concat([]page.Fact{{Name: "verdict", Value: r.verdict()}}, accepted, r.ofArithmetic(), about.Facts) {
		s.Properties = append(s.Properties, junitProperty{text.Line(f.Name), text.Line(f.Value)})
	}
	for _, c := range r.Checks {
		s.add(c.junit(s.Name))
	}
	s.add(r.junit(s.Name))
	if r.Against != nil {
		s.add(r.Against.junit(s.Name))
	}
	if !r.unfinished {
		var out strings.Builder
		if err := r.WriteText(&out); err != nil {
			return err
		}
		s.Out = &junitText{block(out.String())}
	}
	suites := junitSuites{Name: "dsmoe verify", Time: s.Time, Tests: s.Tests, Failures: s.Failures, Errors: s.Errors,
		Suite: s}
	document, err := xml.MarshalIndent(suites, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, document)
	return err
}

// add appends a case, and counts it.
func (s *junitSuite) add(c junitCase) {
	s.Cases = append(s.Cases, c)
	s.Tests++
	switch {
	case c.Failure != nil:
		s.Failures++
	case c.Error != nil:
		s.Errors++
	case c.Skipped != nil:
		s.Skipped++
	}
}

// junit is the case of a check. Its class is the place in the model, behind the last dot:
// Jenkins takes what is before that for a package.
func (c *Check) junit(suite string) junitCase {
	j := junitCase{Name: text.Line(c.Tensor), Class: suite + "." + placeOf(*c)}
	switch c.Verdict {
	case Skipped:
		j.Skipped = &junitResult{Type: "skipped", Message: text.Line(c.Reason)}
	case Accepted:
		j.Skipped = &junitResult{Type: "accepted", Message: text.Line(strings.Join(append(c.acceptance(), c.failureLines()...), "; "))}
	case Fail:
		var why []string
		c.explain(func(format string, args ...any) { why = append(why, text.Line(fmt.Sprintf(format, args...))) })
		var f facts
		c.write(&f)
		j.Failure = &junitResult{"fail", strings.Join(why, "; "), block(f.String())}
	}
	return j
}

// acceptance names the accepted cause of a check; empty without one.
func (c *Check) acceptance() (words []string) {
	if c.Accepted != nil {
		words = append(words, "accepted: "+c.Accepted.String())
	}
	return words
}

// junit is the case of the verdict.
func (r *Report) junit(suite string) junitCase {
	j := junitCase{Name: "verdict", Class: suite + ".verdict"}
	reasons := block(strings.Join(r.Reasons, "\n"))
	switch r.Verdict {
	case Fail:
		j.Failure = &junitResult{"fail", r.summary(), block(fmt.Sprintln(r.divergence())) + reasons}
	case Inconclusive:
		j.Error = &junitResult{"inconclusive", r.summary(), reasons}
	case Skipped:
		j.Skipped = &junitResult{Type: "skipped", Message: r.summary()}
	}
	return j
}

// junit is the case of the other trace's verdict.
func (a *Against) junit(suite string) junitCase {
	j := junitCase{Name: "against", Class: suite + ".verdict"}
	var verdict, all facts
	a.write(&verdict)
	a.writeArithmetics(&all)
	message, details := text.Line(verdict[0].Value), block(append(all, verdict...).String())
	switch a.Verdict {
	case Fail:
		j.Failure = &junitResult{"fail", message, details}
	case Inconclusive:
		j.Error = &junitResult{"inconclusive", message, details}
	}
	return j
}

// block makes every line of a text printable.
func block(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(text.Line(strings.TrimSuffix(line, "\n")) + "\n")
	}
	return b.String()
}
