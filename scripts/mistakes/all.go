package main

import "slices"

// mistakes are those of the gate, the experts, attention, norms and the rest.
func mistakes() []mistake {
	return slices.Concat(ofGate(), ofExperts(), ofAttention(), ofRotary(), ofNorms(), ofIndexer(), ofStreams(), ofGrouped(), ofNumbers(),
		ofWeights())
}
