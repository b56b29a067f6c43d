package plan

import (
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/operation"
	"dsmoe/model/tensor"
)

// Synthetic is a checkpoint with values computed by a rule.
type Synthetic struct {
	Tensors []tensor.Info // in the order of the model
	Config  []byte        // config.json, as it is to be written
	Rule    string        // name of the rule and its parameters: "seed 7"; the same rule gives the same values
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
	f := checkpoint.WrittenBeside(s.Config)
	p := &Plan{Format: f, Options: recordedSynthesis{s.Rule, shardBytes(maxShardBytes, f)}, Sources: []Source{},
		Left: []string{}, Notes: []string{}, Missing: []Missing{}}
	if _, err := p.layOut(s.Tensors, shardBytes(maxShardBytes, f)); err != nil {
		return nil, err
	}
	name := []string{operation.Make{Rule: s.Rule}.Name()}
	segments := make([]Segment, len(p.Tensors))
	for i := range p.Tensors {
		t := &p.Tensors[i]
		segments[i] = Segment{DType: t.DType, Bytes: t.Bytes(),
			Operation: operation.Make{Rule: s.Rule, Info: t.Info(), Fill: s.Fill}}
		t.Operations, t.Segments = name, segments[i:i+1:i+1]
	}
	p.Others = p.describe(s.Config)
	p.seal()
	return p, nil
}
