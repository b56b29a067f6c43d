package report

import (
	"fmt"
	"strings"

	"dsmoe/text"
	"dsmoe/verify/pack"
)

// write prints which weights were rounded and what that did, and the layers and experts with the
// largest errors.
func (x *Rounding) write(f *facts) {
	what := fmt.Sprintf("%s rounded when converted (%s)", CountWere(x.Weights, "weight"), strings.Join(x.Operations, ", "))
	if len(x.Stages) == 0 {
		f.add("rounding", "%s", what)
		return
	}
	differ, of := "differ", "their"
	if len(x.Stages) == 1 {
		differ, of = "differs", "its"
	}
	f.add("rounding", "%s: %s %s by up to %s of %s RMS, where 8 σ allow %s", what, text.Plural(len(x.Stages), "stage"), differ,
		short(x.Error, "%.1e"), of, short(x.Allowed, "%.1e"))
	f.add("", "layers by error: %s", rankedInWords(x.Layers))
	if len(x.Experts) == 0 {
		f.add("", "experts are not ranked: the pack has no stages of single experts")
		return
	}
	f.add("", "experts by error: %s", rankedInWords(x.Experts))
}

// mostRanked is how many layers and experts are named in words; JSON has all.
const mostRanked = 5

func rankedInWords(all []RankedError) string {
	var words []string
	for _, e := range all[:min(mostRanked, len(all))] {
		kind := pack.Parse(e.Tensor).Within
		words = append(words, fmt.Sprintf("layer %d %s %s", e.Layer, kind, text.Figure("%.1e", e.RelRMS)))
	}
	if more := len(all) - len(words); more > 0 {
		words = append(words, fmt.Sprintf("%d more below", more))
	}
	if len(words) == 0 {
		return "none is off"
	}
	return strings.Join(words, ", ")
}
