package inspect

// RouterReport is what the routers of a checkpoint are.
type RouterReport struct {
	Path       string        `json:"path"`        // of the checkpoint, as it was given
	Layers     []LayerRouter `json:"layers"`      // those whose router is selected, in their order
	Findings   []Observation `json:"findings"`    // in the order of the layers
	NotCounted []NotCounted  `json:"not_counted"` // weights that are selected and have no numbers
}

// LayerRouter is the router of a layer, mlp.gate.weight [experts, hidden].
type LayerRouter struct {
	Layer     int         `json:"layer"`
	Tensor    string      `json:"tensor"`    // its name
	Rows      []RouterRow `json:"rows"`      // one for each expert
	Norm      *Spread     `json:"norm"`      // of RouterRow.Norm
	Pairs     *PairSpread `json:"pairs"`     // the cosines of all pairs of rows
	Singular  []float64   `json:"singular"`  // the singular values, the largest first; empty if a number is not finite
	Condition *float64    `json:"condition"` // the largest singular value over the smallest; null if that is 0 to the precision of float64
	// NullCondition is (1 + √(experts/hidden)) / (1 - √(experts/hidden)), of a matrix of
	// independent random numbers; null unless there are fewer experts than hidden.
	NullCondition *float64  `json:"null_condition"`
	Bias          *Spread   `json:"bias"`     // of RouterRow.Bias; null if there is none
	Coupling      *Coupling `json:"coupling"` // null unless it was asked for

	cosines Cosines
}

// Cosines returns the cosines of all pairs of rows.
func (l *LayerRouter) Cosines() Cosines { return l.cosines }

// RouterRow is the row of one expert, its centroid.
type RouterRow struct {
	Expert   int        `json:"expert"`
	Norm     *float64   `json:"norm"`      // √Σr²; null if a number is not finite
	NormZ    *float64   `json:"norm_z"`    // robust z-score of Norm in the layer
	MaxLogit *float64   `json:"max_logit"` // √hidden·‖r∘w‖: no token's logit is larger, of either sign
	Bias     *float64   `json:"bias"`      // e_score_correction_bias; null if there is none
	Nearest  *Neighbour `json:"nearest"`   // the row with the cosine of the largest magnitude
	Proven   string     `json:"proven"`    // "never" or "always" chosen, whatever the token; "" if neither is proven
}

// Coupling is how the rows of a router fit the gate_proj of the experts.
type Coupling struct {
	Own     int    `json:"own"`     // experts that fit their own row, and it them, better than all others
	Other   int    `json:"other"`   // experts that fit another row, and it them, better than all others
	Rows    []int  `json:"rows"`    // for each expert the row that it fits so; -1 for none
	Verdict string `json:"verdict"` // "own", "permuted" or "not measurable"
}
