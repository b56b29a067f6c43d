package report

import (
	"fmt"
	"strings"

	"dsmoe/text"
	"dsmoe/verify/pack"
)

// Against is what another trace of the same tokens, such as a rollout's beside a trainer's, says of the same checkpoint,
// and how the choices of experts of the two differ.
type Against struct {
	Golden          string   `json:"golden"`            // the other trace
	Verdict         Verdict  `json:"verdict"`           // of the checkpoint against it alone
	FirstDivergence *string  `json:"first_divergence"`  // of that verdict
	Cause           *Cause   `json:"cause"`             // likewise
	Reasons         []string `json:"reasons,omitempty"` // likewise
	Other           Golden   `json:"other"`             // how its engine computes, among others
	// what the two engines compute differently, as far as they declare it or a stage of both shows it
	Arithmetics []TwoWays `json:"arithmetics"`
	// what the roundings among these do by themselves to stages of this trace; empty if none of them shows in a stage
	Moved []Moved `json:"moved"`
	AgainstChoices
	Layers []AgainstChoices `json:"layers"` // that both traces have choices of
}

// AgainstChoices counts choices of experts, without padding.
type AgainstChoices struct {
	Layer   string `json:"layer,omitempty"` // such as "model.layers.3"; absent of all layers together
	Choices int    `json:"choices"`         // that both traces have
	Differ  int    `json:"differ"`          // other experts than the other trace has
	// Of Differ, those of tokens for which the engine of this trace chose otherwise than the checkpoint does with the
	// same logits, where rounding does not explain it; of others those for which the engine of the other trace did.
	WrongHere  int `json:"wrong_here"`
	WrongThere int `json:"wrong_there"`
	// The others by their reason, where both traces have logits.
	Precision int `json:"router_precision"` // a router rounds logits or scores: in float32 the two choose alike
	Inputs    int `json:"router_inputs"`    // the routers' inputs differ: in float32 the choices differ, too
	Tied      int `json:"same_logits"`      // the logits of the token are the same: scores are equal
	Untold    int `json:"untold"`           // a trace has no logits, or was not held to them
}

// TwoWays is something that two engines compute differently.
type TwoWays struct {
	// an operation, such as "post-add-norm", or "dtype", "cache", "attention", "sums", "inputs of F16 products"
	Of    string `json:"of"`
	Here  string `json:"here"`  // how the engine of this trace computes it
	There string `json:"there"` // how the engine of the other trace does
}

// Moved is what the other trace's roundings do to stages of a kind that are computed from this trace's inputs, in the
// first layers that have it.
type Moved struct {
	Stage    string  `json:"stage"`    // such as "post_attention_layernorm.output"
	Elements int     `json:"elements"` // that become another number
	Of       int     `json:"of"`       // elements
	RelRMS   float64 `json:"rel_rms"`  // the largest RMS of the differences of a stage, over the stage's
}

// Add adds the counts of a layer.
func (a *Against) Add(l AgainstChoices) {
	a.Layers = append(a.Layers, l)
	a.Choices, a.Differ = a.Choices+l.Choices, a.Differ+l.Differ
	a.WrongHere, a.WrongThere = a.WrongHere+l.WrongHere, a.WrongThere+l.WrongThere
	a.Precision, a.Inputs, a.Tied, a.Untold = a.Precision+l.Precision, a.Inputs+l.Inputs, a.Tied+l.Tied, a.Untold+l.Untold
}

// writeArithmetics writes how the engine of the other trace computes, in what the two differ, and what that does.
func (a *Against) writeArithmetics(f *facts) {
	f.add("other", "%s", text.Line(a.Other.Reference.String()))
	if a.Other.Reference.Kind == pack.Engine {
		a.Other.writeArithmetic(f, "")
	}
	var ways []string // each, with all that is computed so
	of := map[string][]string{}
	for _, d := range a.Arithmetics {
		as := fmt.Sprintf("%q here, %q there", d.Here, d.There)
		if of[as] == nil {
			ways = append(ways, as)
		}
		of[as] = append(of[as], d.Of)
	}
	for i, as := range ways {
		ways[i] = strings.Join(of[as], ", ") + ": " + as
	}
	if ways == nil {
		f.add("", "no difference is seen in how the two round")
		return
	}
	f.add("", "they round differently: %s", text.Line(strings.Join(ways, "; ")))
	var moved []string
	for _, m := range a.Moved {
		moved = append(moved, fmt.Sprintf("%s %s", m.Stage, text.Figure("%.1e", m.RelRMS)))
	}
	if moved != nil {
		f.add("", "these roundings alone move stages of the first layers, as shares of their RMS: %s",
			text.Line(strings.Join(moved, ", ")))
	}
}

// write writes the verdict of the other trace, and counts the choices that differ.
func (a *Against) write(f *facts) {
	verdict := strings.ToUpper(string(a.Verdict))
	switch {
	case a.FirstDivergence != nil:
		verdict += " at " + *a.FirstDivergence
	case len(a.Reasons) > 0:
		verdict += ": " + a.Reasons[0]
	}
	if a.Cause != nil {
		verdict += "; " + a.Cause.String()
	}
	f.add("against", "%s: %s", text.Quote(a.Golden), text.Line(verdict))
	choices := fmt.Sprintf("%d of %d %s of experts differ from that trace's", a.Differ, a.Choices,
		text.Noun(a.Choices, "choice"))
	separator := ": "
	for _, why := range []struct {
		n    int
		text string
	}{
		{a.Precision, "because a router rounds: in float32 both choose the same"},
		{a.Inputs, "because the routers' inputs differ"},
		{a.WrongHere, "where this engine chose what rounding does not explain"},
		{a.WrongThere, "where the other engine did"},
		{a.Tied, "among equal scores, of the same logits"},
		{a.Untold, "without logits in both traces that tell why"},
	} {
		if why.n > 0 {
			choices += fmt.Sprintf("%s%d %s", separator, why.n, why.text)
			separator = ", "
		}
	}
	f.add("", "%s", choices)
}
