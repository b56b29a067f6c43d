package report

import (
	"strings"

	"dsmoe/text"
)

// Against is what another trace of the same tokens, such as a rollout's beside a trainer's, says of the same checkpoint,
// and how the choices of experts of the two differ.
type Against struct {
	Golden          string   `json:"golden"`            // the other trace
	Verdict         Verdict  `json:"verdict"`           // of the checkpoint against it alone
	FirstDivergence *string  `json:"first_divergence"`  // of that verdict
	Cause           *Cause   `json:"cause"`             // likewise
	Reasons         []string `json:"reasons,omitempty"` // likewise
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
}

// Add adds the counts of a layer.
func (a *Against) Add(l AgainstChoices) {
	a.Layers = append(a.Layers, l)
	a.Choices, a.Differ = a.Choices+l.Choices, a.Differ+l.Differ
	a.WrongHere, a.WrongThere = a.WrongHere+l.WrongHere, a.WrongThere+l.WrongThere
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
	f.add("", "%d of %d %s of experts differ from that trace's: %d where this engine chose what rounding does not explain, "+
		"%d where the other engine did, %d for which the logits of the two differ", a.Differ, a.Choices,
		text.Noun(a.Choices, "choice"), a.WrongHere, a.WrongThere, a.Differ-a.WrongHere-a.WrongThere)
}
