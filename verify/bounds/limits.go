package bounds

// What rounding explains at most, in standard deviations.
const (
	Lambda      = 8 // of an element
	NeuronLimit = 6 // of the residuals of a token, projected on a neuron
)

// Neuron is the neuron of an MLP on which most of a residual lies.
type Neuron struct {
	Expert int     `json:"expert"` // number of the routed expert, -1 for other MLPs
	Index  int     `json:"index"`  // row of gate_proj and up_proj, column of down_proj
	Token  int     `json:"token"`  // row of the stage
	Z      float64 `json:"z"`      // in standard deviations
	// Share is how much of the token's residual, of what exceeds rounding, lies on the neuron;
	// 0 if another neuron of the MLP would explain half of that.
	Share float64 `json:"share"`
	// explained is N²/E, the sum of squares of the token's residual, in standard deviations, that
	// lies on the neuron; 0 if it is not known.
	explained float64
}

// Certain is the share of a residual from which on it is the neuron's.
const Certain = 0.9
