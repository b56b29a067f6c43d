package routing

import (
	"encoding/json"
	"io"
)

// Choice is the experts that a gate chose for one token.
type Choice struct {
	Set      string    `json:"set,omitempty"` // name of the set of tokens; "" if there is one without a name
	Layer    int       `json:"layer"`         // in the model; from num_hidden_layers on a prediction layer
	Sequence int       `json:"sequence"`      // of the input
	Position int       `json:"position"`      // of the token in its sequence, padding included
	Token    int       `json:"token"`         // id
	Experts  []int     `json:"experts"`       // ids, as the gate lists them
	Weights  []float32 `json:"weights"`       // of the gate for Experts, normalised and scaled; null without gate weights
}

// ChoicesTo returns a function for Options.Choices that writes each choice as a line of JSON, and the name of its set.
func ChoicesTo(w io.Writer, set string) func(Choice) error {
	e := json.NewEncoder(w)
	return func(c Choice) error {
		c.Set = set
		return e.Encode(c)
	}
}
