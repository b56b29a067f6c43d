//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	"dsmoe/config"
	"dsmoe/convert/checkpoint"
	"dsmoe/model"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/verify/pack"
	"dsmoe/verify/verifytest"
)

// record makes a pack of what dsmoe's own forward pass computes for so many random tokens: of one layer with a random
// input, or of the whole model if layer is negative. It returns the processor time of the same pass with sums in float64,
// as verify has them, without a trace.
func record(checkpointPath, dir string, layer, tokens int, d tensor.DType) (time.Duration, error) {
	c, err := checkpoint.Open(checkpointPath)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	m, err := model.LoadPart(c.Config, c, func(s table.Slot) bool { return layer < 0 || s.Layer == layer })
	if err != nil {
		return 0, err
	}
	in, random := &model.Input{Batch: 1, Seq: tokens}, rand.New(rand.NewPCG(1, 2))
	for range tokens {
		in.InputIDs = append(in.InputIDs, random.IntN(c.Config.VocabSize))
	}
	run := func(o model.Options, trace model.Trace[*model.Activation]) error {
		plain := model.NewPlain(o)
		defer plain.Close(nil)
		net := &model.Network[*model.Activation]{Model: m, Input: in, Options: o, Arithmetic: plain, Trace: trace}
		if layer < 0 {
			_, err := net.Forward(context.Background())
			return err
		}
		_, err := net.Run(context.Background(), &model.Course[*model.Activation]{Layers: []int{layer},
			Start: func(int) (*model.Activation, error) { return normal(d, tokens, c.Config.HiddenSize), nil }})
		return err
	}
	r := newRecorder(dir, c.Config, layer, d)
	if r.Manifest.Config, err = c.ConfigText(); err != nil {
		return 0, err
	}
	if err := r.KeepInts("input_ids", []int{1, tokens}, in.InputIDs); err != nil {
		return 0, err
	}
	if err := run(model.Options{DType: d, Accumulate: model.Float32}, r); err != nil {
		return 0, err
	}
	if layer < 0 { // inputs of layers are outputs of the parts before
		maps.DeleteFunc(r.Manifest.Tensors, func(name string, _ pack.Entry) bool { return pack.Parse(name).Within == pack.OwnInputKind })
	}
	if err := r.Write(); err != nil {
		return 0, err
	}
	before, err := processorTime()
	if err == nil {
		err = run(model.Options{DType: d}, nil)
	}
	after, _ := processorTime()
	return after - before, err
}

// normal returns the same random input of a layer at each call.
func normal(d tensor.DType, tokens, hidden int) *model.Activation {
	a, random := &model.Activation{DType: d, Shape: []int{1, tokens, hidden}}, rand.New(rand.NewPCG(3, 4))
	for range tokens * hidden {
		a.Values = append(a.Values, tensor.Rounded(float32(random.NormFloat64()), d))
	}
	return a
}

// newRecorder is a recorder without the weights of attention, which golden.py leaves out, too.
func newRecorder(dir string, c *config.Config, layer int, d tensor.DType) *verifytest.Recorder {
	r := verifytest.NewRecorder(dir, c, d)
	r.Manifest.Absent.Stages = []string{"self_attn.attn_weights"}
	r.Manifest.Partial = "random tokens; see absent"
	if layer < 0 {
		return r
	}
	for l := range c.NumHiddenLayers + c.NumNextNPredictLayers {
		if l != layer {
			r.Manifest.Absent.Layers = append(r.Manifest.Absent.Layers, l)
		}
	}
	r.Manifest.Absent.Stages = append(r.Manifest.Absent.Stages, "model.embed_tokens.output", "model.norm.output", "lm_head.output")
	r.Manifest.LayerInputs = map[string]pack.LayerInput{fmt.Sprint(layer): {Kind: pack.Seeded, Values: "normal"}}
	return r
}

// processorTime returns the user processor time of this process.
func processorTime() (time.Duration, error) {
	var u syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano()), err
}
