package plan

import (
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/operation"
	"dsmoe/model/tensor"
)

// Synthetic is a checkpoint whose values follow from a rule.
type Synthetic struct {
	Tensors []tensor.Info // in the order of the model
	Config  []byte        // config.json, as it is to be written
	Rule    string        // names the rule and what it depends on: "seed 7"; the same rule gives the same values
	// Fill writes the bytes of a tensor from offset on to dst. It is called for several
	// parts at once; dst holds whole elements.
	Fill func(t tensor.Info, dst []byte, offset int64) error
}

// recordedSynthesis is a Synthetic as a plan and a manifest hold it.
type recordedSynthesis struct {
	Rule          string `json:"rule"`            // of the values
	MaxShardBytes int64  `json:"max_shard_bytes"` // as it is used, neither 0 nor negative
}

// Synthesis plans a checkpoint that is made from nothing, in shards of at most
// maxShardBytes of tensor data: 0 is 5 GB, negative is one file for all.
func Synthesis(s Synthetic, maxShardBytes int64) (*Plan, error) {
	p := &Plan{Options: recordedSynthesis{s.Rule, shardBytes(maxShardBytes)}, Sources: []Source{}, Left: []string{}, Notes: []string{}, Missing: []Missing{}, Order: s.Tensors}
	if err := p.layOut(checkpoint.Written(), shardBytes(maxShardBytes)); err != nil {
		return nil, err
	}
	for i := range p.Tensors {
		t := &p.Tensors[i]
		rule := operation.Make{Rule: s.Rule, Info: t.Info(), Fill: s.Fill}
		t.Operations = []string{rule.Name()}
		t.Segments = []Segment{{DType: t.DType, Bytes: t.Bytes(), Operation: rule}}
	}
	p.describe(s.Config)
	p.seal()
	return p, nil
}
