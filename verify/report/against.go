package report

import (
	"fmt"
	"strings"

	"dsmoe/text"
	"dsmoe/verify/pack"
)

// Against is what another trace of the same tokens, such as a rollout's beside a trainer's, says of the same checkpoint,
// and how the choices of experts and the logits of the two differ.
type Against struct {
	Golden          string   `json:"golden"`            // the other trace
	This            Verdict  `json:"this_verdict"`      // of the checkpoint against this trace alone
	Verdict         Verdict  `json:"verdict"`           // of the checkpoint against the other trace alone
	Text            string   `json:"text"`              // that verdict in words, such as "PASS (43 of 43 weights exercised)"
	FirstDivergence *string  `json:"first_divergence"`  // of that verdict
	Cause           *Cause   `json:"cause"`             // likewise
	Reasons         []string `json:"reasons,omitempty"` // likewise
	// what the user accepts of the other trace; see Report
	Accepted []AcceptedCause `json:"accepted,omitempty"`
	Other    Golden          `json:"other"` // how its engine computes, among others
	// what the two engines compute differently, as far as they declare it or a stage of both shows it
	Arithmetics []TwoWays `json:"arithmetics"`
	// what the roundings among these do by themselves to stages of this trace; empty if none of them shows in a stage
	Moved []Moved `json:"moved"`
	AgainstChoices
	Layers []AgainstChoices `json:"layers"` // that both traces have choices of
	// the first token, of the first layer with one, for which the two traces have other experts; absent if they are the same
	First *OtherExperts `json:"first,omitempty"`
	// the same where an engine chose what rounding does not explain; absent if no engine did
	FirstBeyond *OtherExperts  `json:"first_beyond_rounding,omitempty"`
	Logits      *AgainstLogits `json:"logits"` // what the two traces' logits say of each next token
}

// NewAgainst returns what a report of the other trace, at a path, says.
func NewAgainst(path string, other *Report) *Against {
	return &Against{Golden: path, Verdict: other.Verdict, Text: other.verdict(), FirstDivergence: other.FirstDivergence,
		Cause: other.Cause, Reasons: other.Reasons, Accepted: other.Accepted, Other: other.Golden, Layers: []AgainstChoices{}}
}

// decides reports whether the verdict of a report is that of the other trace, not of this one. a may be nil.
func (a *Against) decides(v Verdict) bool { return a != nil && a.This != v }

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

// The reasons why choices differ: the keys of their counts in AgainstChoices.
const (
	WrongHere  = "wrong_here"
	WrongThere = "wrong_there"
	Precision  = "router_precision"
	Inputs     = "router_inputs"
	Tied       = "same_logits"
	Untold     = "untold"
)

// count returns the choices that differ for a reason, and the reason in words.
func (c *AgainstChoices) count(why string) (n *int, words string) {
	switch why {
	case Precision:
		return &c.Precision, "because a router rounds: in float32 both choose the same"
	case Inputs:
		return &c.Inputs, "because the routers' inputs differ"
	case WrongHere:
		return &c.WrongHere, "where this engine chose what rounding does not explain"
	case WrongThere:
		return &c.WrongThere, "where the other engine chose what rounding does not explain"
	case Tied:
		return &c.Tied, "among equal scores, of the same logits"
	}
	return &c.Untold, "without logits in both traces that tell why"
}

// OtherExperts is a token for which the two traces have other experts in a layer.
type OtherExperts struct {
	Layer    string `json:"layer"`    // such as "model.layers.3"
	Sequence int    `json:"sequence"` // number
	Position int    `json:"position"` // of the token in the sequence
	Here     []int  `json:"here"`     // experts that this trace alone has
	There    []int  `json:"there"`    // experts that the other trace alone has
	Why      string `json:"why"`      // key of AgainstChoices that counts it
}

// String names the token, its experts and the reason.
func (o *OtherExperts) String() string {
	_, why := new(AgainstChoices).count(o.Why)
	return fmt.Sprintf("layer %d, %s: experts %s here, %s there, %s", layerNumber(o.Layer), tokenAt(o.Sequence, o.Position),
		text.Ranges(o.Here), text.Ranges(o.There), why)
}

// tokenAt names a token of a sequence.
func tokenAt(sequence, position int) string {
	if sequence > 0 {
		return fmt.Sprintf("token %d of sequence %d", position, sequence)
	}
	return fmt.Sprintf("token %d", position)
}

// AgainstLogits is how far the logits of two traces are apart.
type AgainstLogits struct {
	Missing   string `json:"missing,omitempty"` // why they were not compared; empty if they were
	Tokens    int    `json:"tokens"`            // whose logits were compared, without padding
	NotFinite int    `json:"not_finite"`        // tokens with logits that are not finite, which are left out
	// |Δ log p| of the token that follows in the sequence; null if none follows
	LogProb *TokenFigure `json:"log_prob"`
	// Σ p·log(p/q) over the vocabulary, p of this trace and q of the other; null without tokens
	KL *TokenFigure `json:"kl"`
}

// TokenFigure is a number that each token has.
type TokenFigure struct {
	Median   float64 `json:"median"`   // the lower of the two middle values
	Max      float64 `json:"max"`      // over all tokens
	Sequence int     `json:"sequence"` // of the token with the largest number
	Position int     `json:"position"` // of that token: of log_prob the one that is predicted, of kl the last one before
	Token    int     `json:"token"`    // its id
	// log p of that token here and there, of log_prob
	Here  *float64 `json:"here,omitempty"`
	There *float64 `json:"there,omitempty"`
}

// write writes how far the logits are apart.
func (l *AgainstLogits) write(f *facts) {
	if l.Missing != "" {
		f.add("", "logits are not compared: %s", l.Missing)
		return
	}
	words := fmt.Sprintf("logits of %s:", text.Plural(l.Tokens, "token"))
	figures := func(t *TokenFigure) string {
		return fmt.Sprintf("median %s, at most %s", text.Figure("%.1e", t.Median), text.Figure("%.1e", t.Max))
	}
	if t := l.LogProb; t != nil {
		words += fmt.Sprintf(" |Δ log p| of the next token %s, of %s (id %d: %s here, %s there);", figures(t),
			tokenAt(t.Sequence, t.Position), t.Token, text.Figure("%.4g", *t.Here), text.Figure("%.4g", *t.There))
	}
	if t := l.KL; t != nil {
		words += fmt.Sprintf(" KL %s, behind %s", figures(t), tokenAt(t.Sequence, t.Position))
	}
	f.add("", "%s", words)
	if l.NotFinite > 0 {
		f.add("", "%s left out: their logits are not finite", CountWere(l.NotFinite, "token"))
	}
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

// verdict is the verdict of the other trace in words, with what decides it.
func (a *Against) verdict() string {
	verdict := a.Text
	switch {
	case a.FirstDivergence != nil:
		verdict += " at " + *a.FirstDivergence
	case len(a.Reasons) > 0:
		verdict += ": " + a.Reasons[0]
	}
	if a.Cause != nil {
		verdict += "; " + a.Cause.String()
	}
	return text.Line(text.Quote(a.Golden) + ": " + verdict)
}

// write writes the verdict of the other trace, and counts the choices that differ.
func (a *Against) write(f *facts) {
	f.add("against", "%s", a.verdict())
	choices := fmt.Sprintf("%d of %d %s of experts differ from that trace's", a.Differ, a.Choices,
		text.Noun(a.Choices, "choice"))
	separator := ": "
	for _, why := range []string{Precision, Inputs, WrongHere, WrongThere, Tied, Untold} {
		if n, words := a.count(why); *n > 0 {
			choices += fmt.Sprintf("%s%d %s", separator, *n, words)
			separator = ", "
		}
	}
	f.add("", "%s", choices)
	switch {
	case a.First == nil:
	case a.FirstBeyond != nil:
		f.add("", "the first: %s", a.First)
		f.add("", "the first beyond rounding: %s", a.FirstBeyond)
	case a.This == Pass && a.Verdict == Pass:
		f.add("", "the first: %s; none differs beyond rounding", a.First)
	default:
		f.add("", "the first: %s; each router chose by its own input within rounding; the verdicts say which inputs are right",
			a.First)
	}
	a.Logits.write(f)
}
