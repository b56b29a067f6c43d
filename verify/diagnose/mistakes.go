// Package diagnose finds the cause of a failed stage: known mistakes are undone one by one, and what is wrong with a
// weight is read off the numbers, as the inputs of a product, what it gave and the golden are all known. What is named
// makes every failed stage of the layer pass.
//
// A Failure holds the failed stage and the functions that run its layer, or one row of it, again with a Trial: a copy of
// the model, its config and its input with one mistake undone.
package diagnose

import (
	"slices"

	"dsmoe/model/table"
	"dsmoe/verify/pack"
)

// mistakes are tried in this order, in which Report.Causes lists them: switches and numbers of
// the config first, then what a conversion does to weights, from whole layers to rows.
func mistakes(f *Failure) []mistake {
	return slices.Concat(configMistakes(f), productMistakes(), sumMistakes(), biasMistakes(f), engineMistakes(f),
		weightMistakes(f), indexerMistakes(f), windowedMistakes(f), groupedMistakes(f))
}

func configMistakes(f *Failure) []mistake {
	list := []mistake{
		{id: "experts-per-token", kinds: []string{pack.TopKIdx}, undo: undoExpertsPerTok},
		{id: "group-mask", kinds: []string{pack.TopKIdx}, undo: undoGroups},
		{id: "norm-topk", kinds: []string{pack.TopKWeight}, undo: undoNormTopK},
		{id: "reference", kinds: []string{pack.TopKWeight, pack.ExpertsOutput}, undo: undoReference},
		{id: "routed-scale", kinds: []string{pack.TopKWeight}, undo: undoScale},
		{id: "bias-leak", kinds: []string{pack.TopKWeight}, undo: undoBiasLeak},
		{id: "aux-loss-form", kinds: []string{pack.AuxLoss}, undo: undoSeqAux},
		{id: "aux-loss-counts", kinds: []string{pack.AuxLoss}, undo: undoCounts},
		{id: "aux-loss-alpha", kinds: []string{pack.AuxLoss}, undo: undoAlpha},
		{id: "rotary-dtype", kinds: ropeStages, undo: undoRotaryDType},
		{id: "rope-layout", kinds: attendStages, undo: undoLayout},
		{id: "rope-scaling", kinds: ropeStages, undo: undoRopeScaling},
		{id: "padding-mask", kinds: attendStages, undo: undoPaddingMask},
	}
	c := f.Model.Config
	for n := range c.Router.NGroup {
		list = append(list, mistake{id: "topk-group", kinds: []string{pack.TopKIdx}, undo: undoTopKGroup(n + 1)})
	}
	for n := range c.MoE.NRoutedExperts {
		list = append(list, mistake{id: "group-count", kinds: []string{pack.TopKIdx}, undo: undoNGroup(n + 1)})
	}
	for n := 2; n <= 16; n++ {
		for chosen := range n - 1 {
			list = append(list, mistake{id: "group-mask", kinds: []string{pack.TopKIdx}, undo: undoNoGroups(n, chosen+1)})
		}
	}
	for _, mscale := range []float64{1, 0.707, 0} {
		list = append(list, mistake{id: "yarn-mscale", kinds: ropeStages, unless: "yarn-mscale", undo: undoMScale(mscale)})
	}
	for _, heads := range []int{2, 4, 8, 16, 32, 64, 128} {
		list = append(list, mistake{id: "head-count", kinds: ropeStages, undo: undoHeads(heads)})
	}
	for _, s := range scalings(c) {
		list = append(list, mistake{id: "rope-scaling", kinds: ropeStages, guess: true, undo: undoMissingScaling(s)})
	}
	return list
}

func weightMistakes(f *Failure) []mistake {
	list := []mistake{}
	for l := range f.Model.Model.Layers {
		list = append(list, mistake{id: "layers-exchanged", kinds: normStages, undo: undoLayer(l)})
	}
	list = append(list, []mistake{
		{id: "norm-off-by-one", kinds: normStages, undo: undoNormOffset(1)},
		{id: "norm-off-by-one", kinds: normStages, undo: undoNormOffset(-1)},
		{id: "gate-up-swapped", kinds: pack.MLPOutputs, experts: true, undo: undoGateUp},
		{id: "gate-up-swapped", kinds: gateStages, undo: undoGateUp},
		{id: "expert-order", kinds: []string{pack.ExpertsOutput}, experts: true, undo: undoLexicographic},
		{id: "expert-order", kinds: []string{expertGate}, undo: undoLexicographic},
		{id: "mtp-norms", kinds: []string{"enorm.output"}, undo: undoPredictionNorms},
		{id: "mtp-copy", kinds: []string{"enorm.output", pack.PredictedLogits}, undo: undoCopies},
		{id: "mtp-halves", kinds: []string{pack.PredictedFrom}, undo: undoHalves},
		{id: "experts-renumbered", kinds: []string{pack.GateLogits}, undo: undoRenumbered(false), more: f.sumsInWords},
		{id: "experts-renumbered", kinds: []string{pack.GateLogits}, unless: "experts-renumbered", undo: undoRenumbered(true),
			more: f.sumsInWords},
		{id: "router-rows", kinds: []string{pack.GateLogits}, unless: "experts-renumbered", undo: undoRouterRows(false)},
		{id: "router-rows", kinds: []string{pack.GateLogits}, unless: "experts-renumbered", undo: undoRouterRows(true)},
	}...)
	switch kind := f.kind(); kind {
	case pack.ExpertsOutput, expertGate:
		list = append(list, f.expertMistakes(kind)...)
	case pack.ProbeOutput:
		list = append(list, f.probeMistakes()...)
	}
	for _, pair := range [][2]table.Role{{table.QProj, table.KProj}, {table.QProj, table.VProj},
		{table.QProj, table.OProj},
		{table.KProj, table.VProj}, {table.KProj, table.OProj}, {table.VProj, table.OProj}} {
		list = append(list, mistake{id: "projections-exchanged", kinds: stageOf(pair[0]),
			undo: undoExchanged(pair[0], pair[1])})
	}
	for _, proj := range projections {
		list = append(list, mistake{id: "transposed", kinds: stageOf(proj), undo: undoTransposed(proj)},
			mistake{id: "scales-transposed", kinds: stageOf(proj), undo: undoProjectionScales(proj)})
	}
	for _, parts := range [][]bool{{true, true, true}, {true, false, false}, {false, true, false}, {true, true, false},
		{false, false, true}} {
		list = append(list, mistake{id: "scales-transposed", kinds: slices.Concat(gateStages, upStages, pack.MLPOutputs),
			experts: true, undo: undoMLPScales(parts)})
	}
	return list
}

// expertMistakes are mistakes of single routed experts, and of their numbers.
func (f *Failure) expertMistakes(kind string) (list []mistake) {
	kinds := []string{kind}
	for _, e := range f.suspects() {
		list = append(list, mistake{id: "gate-up-swapped", kinds: kinds, experts: true, unless: "gate-up-swapped",
			undo: undoGateUpOf(e)})
	}
	for _, by := range rotations(f.Model.Config.MoE.NRoutedExperts) {
		list = append(list, mistake{id: "experts-rotated", kinds: kinds, experts: true, undo: undoRotated(by)})
	}
	for _, pair := range f.suspectPairs() {
		list = append(list, mistake{id: "experts-swapped", kinds: kinds, experts: true, undo: undoSwapped(pair)})
	}
	return list
}

// probeMistakes are mistakes of the expert whose probe failed.
func (f *Failure) probeMistakes() []mistake {
	e := pack.Parse(f.Kind).Expert
	list := []mistake{{id: "gate-up-swapped", kinds: []string{pack.ProbeOutput}, undo: undoGateUpOf(e)}}
	for _, other := range f.wrongProbes() {
		if other > e { // experts before this one are right
			list = append(list, mistake{id: "experts-swapped", kinds: []string{pack.ProbeOutput},
				undo: undoSwapped([2]int{e, other})})
		}
	}
	return list
}
