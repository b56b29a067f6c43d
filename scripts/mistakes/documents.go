package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"

	"dsmoe/text"
	"dsmoe/verify/report"
	"dsmoe/verify/verifytest"
)

// jsonReport is what is compared of a report's JSON.
type jsonReport struct {
	Verdict         string                     `json:"verdict"`
	FirstDivergence *string                    `json:"first_divergence"`
	Cause           *struct{ ID, Text string } `json:"cause"`
	Checks          []struct {
		Tensor, Verdict, Reason string
		Failed                  []struct {
			Measure string
			Value   *float64
			Limit   float64
		}
	} `json:"checks"`
}

// junitReport is what is compared of a report's JUnit document.
type junitReport struct {
	Cases []struct {
		Name    string                  `xml:"name,attr"`
		Class   string                  `xml:"classname,attr"`
		Failure *struct{ junitMessage } `xml:"failure"`
		Error   *struct{ junitMessage } `xml:"error"`
	} `xml:"testsuite>testcase"`
}

// junitMessage is the message of a failure or an error.
type junitMessage struct {
	Message string `xml:"message,attr"`
}

// documents writes a report in all forms, and says where they are no such documents, or do not
// say the same of the verdict, the cause and what each check failed by.
func documents(r *report.Report, printed string) error {
	var asJSON, junit, html strings.Builder
	about := report.About{Name: "model against golden"}
	if err := errors.Join(text.WriteJSON(&asJSON, r), r.WriteJUnit(&junit, about), r.WriteHTML(&html, about)); err != nil {
		return err
	}
	var j jsonReport
	var x junitReport
	if err := errors.Join(json.Unmarshal([]byte(asJSON.String()), &j),
		xml.Unmarshal([]byte(junit.String()), &x)); err != nil {
		return err
	}
	if _, err := verifytest.Schema(junit.String()); err != nil {
		return fmt.Errorf("JUnit: %w", err)
	}
	page, err := words(html.String())
	if err != nil {
		return fmt.Errorf("HTML: %w", err)
	}
	return errors.Join(sameVerdict(&j, &x, page, printed), sameFailures(&j, &x, page, printed))
}

// words are the texts of a page, one for each element that has any.
func words(page string) (texts []string, err error) {
	d := xml.NewDecoder(strings.NewReader(page))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts, nil
		} else if err != nil {
			return nil, err
		}
		if s, ok := token.(xml.CharData); ok {
			texts = append(texts, string(s))
		}
	}
}

// sameVerdict compares the verdicts and the causes.
func sameVerdict(j *jsonReport, x *junitReport, page []string, printed string) error {
	verdict, cause := strings.ToUpper(j.Verdict), ""
	if j.Cause != nil {
		cause = j.Cause.ID + ": " + j.Cause.Text
	}
	last := x.Cases[len(x.Cases)-1]
	var failed, unclear bool
	switch {
	case last.Failure != nil:
		failed = strings.Contains(last.Failure.Message, cause)
	case last.Error != nil:
		unclear = true
	}
	var headline, caused bool
	for _, s := range page {
		headline = headline || strings.HasPrefix(s, verdict)
		caused = caused || s == cause
	}
	switch {
	case !strings.HasPrefix(printed, "verdict    "+verdict):
		return fmt.Errorf("text: verdict is not %s", verdict)
	case cause != "" && !strings.Contains(printed, "\ncause      "+cause+"\n"):
		return fmt.Errorf("text: cause is not %s", cause)
	case last.Name != "verdict" || failed != (verdict == "FAIL") || unclear != (verdict == "INCONCLUSIVE"):
		return fmt.Errorf("JUnit: verdict is not %s, or its cause not %q", verdict, cause)
	case !headline || cause != "" && !caused:
		return fmt.Errorf("HTML: verdict is not %s, or its cause not %q", verdict, cause)
	}
	return nil
}

// sameFailures compares what the checks failed by.
func sameFailures(j *jsonReport, x *junitReport, page []string, printed string) error {
	if len(x.Cases) != len(j.Checks)+1 {
		return fmt.Errorf("JUnit: %d cases, of %d checks", len(x.Cases), len(j.Checks))
	}
	all := strings.Join(page, "\n")
	for i, c := range j.Checks {
		junit := x.Cases[i].Failure
		if failed := c.Verdict == "fail"; failed != (junit != nil) ||
			failed != (len(c.Failed) > 0 || failed && c.Reason != "") {
			return fmt.Errorf("%s: %s: JUnit says otherwise, or nothing that it failed by", c.Tensor, c.Verdict)
		} else if !failed {
			continue
		}
		says := []string{}
		for _, m := range c.Failed {
			if m.Value != nil && *m.Value <= m.Limit {
				return fmt.Errorf("%s: %s %g is within %g", c.Tensor, m.Measure, *m.Value, m.Limit)
			}
			value := "infinite"
			if m.Value != nil {
				value = fmt.Sprintf("%.3g", *m.Value)
			}
			says = append(says, fmt.Sprintf("%s, limit %.3g", value, m.Limit))
		}
		if c.Reason != "" {
			says = []string{c.Reason}
		}
		for _, s := range says {
			first := c.Tensor == *j.FirstDivergence
			if !strings.Contains(junit.Message, s) || !strings.Contains(all, s) || first && !strings.Contains(printed, s) {
				return fmt.Errorf("%s: %q is not everywhere", c.Tensor, s)
			}
		}
	}
	return nil
}
