package main

import (
	"cmp"
	"errors"

	"dsmoe/cmd/dsmoe/internal/cli"
	"dsmoe/convert/checkpoint"
	"dsmoe/convert/plan"
	"dsmoe/inspect/header"
	"dsmoe/model/table"
	"dsmoe/model/tensor"
	"dsmoe/model/weights"
	"dsmoe/text"
	"dsmoe/text/problem"
)

func memInspection() *inspection {
	var contexts []int
	batches := []int{1}
	var dtype cli.WeightType
	var fit int64
	return &inspection{
		use:   "mem {CONFIG|CHECKPOINT}",
		short: "Work out the memory that a model takes",
		long: `Prints the bytes of the weights, the KV cache and the activations for each
--context with each --batch. The weights are those of the CHECKPOINT's files, or
of a CONFIG in torch_dtype and as its quantization_config says. --type gives
them as convert would write them, by the same plan. --fit lists the types of
GGUF files with which llama.cpp fits into a memory, each with the longest
context, and says which one to take. No weight is read.

dsmoe help memory  the formulas`,
		example: `  dsmoe demo
  dsmoe inspect mem dsmoe-demo/checkpoint --fit 16GiB
  dsmoe inspect mem --context 4096,32768 --plot mem.svg dsmoe-demo/checkpoint`,
		no: "with --fit: no type fits",
		documents: cli.Documents{
			cli.DocumentOf[*header.MemoryReport]("dsmoe.inspect.mem/1"),
			cli.DocumentOf[*header.FitReport]("dsmoe.inspect.mem.fit/2"),
		},
		expects: "CONFIG or CHECKPOINT",
		pipe:    text.TSV,
		plot:    "bars of what each context and batch takes",
		flags: func(q *query) {
			cli.NumbersFlag(q.Flags(), &contexts, "context",
				"sequences of so many `tokens`: 4096,32768 (default max_position_embeddings, or 4096 where attention is not computed)")
			cli.NumbersFlag(q.Flags(), &batches, "batch", "so many `sequences` at once: 1,8")
			q.Flags().Var(cli.TypeFlag(&dtype), "type", "weights as convert --type writes them")
			q.Flags().Var(cli.SizeFlag(&fit), "fit", "list the types of GGUF files that fit into a `size` of memory: 16GiB")
			q.MarkFlagsMutuallyExclusive("fit", "type")
			q.MarkFlagsMutuallyExclusive("fit", cli.PlotFlag)
		},
		run: func(q *query) (cli.Result, error) {
			src, imagined, err := checkpointOrConfig(q.Context(), q.path)
			if err != nil {
				return nil, err
			}
			defer src.Close()
			if fit > 0 {
				return fitting(q, src, fit, contexts, batches)
			}
			if len(contexts) == 0 {
				contexts = []int{cmp.Or(src.Config.RoPE.MaxPositionEmbeddings, 4096)}
			}
			w, err := weightsOf(src, imagined, dtype)
			if err != nil {
				return nil, err
			}
			r, err := header.MemoryOf(src.Path, src.Config, w, contexts, batches)
			if err != nil {
				return nil, cli.Misuse(q.Command, err.Error())
			}
			return r, nil
		},
	}
}

// fitting works out which of the types of GGUF files that convert writes of src fit into so many bytes of memory.
func fitting(q *query, src *checkpoint.Checkpoint, memory int64, contexts, batches []int) (cli.Result, error) {
	if err := src.Config.Attends(); err != nil {
		return nil, problem.In(src.Path, problem.Of(src.ConfigFile(), err)...)
	}
	if len(contexts) > 1 || len(batches) != 1 {
		return nil, cli.Misuse(q.Command, "--fit takes one --context and one --batch")
	}
	b := cli.Bar{To: q.ErrOrStderr(), Counts: true}
	defer b.Remove()
	names := append(checkpoint.Mixtures(), "bf16")
	types := map[string]header.Weights{}
	var refused error
	for i, name := range names {
		to := cli.WeightType{Mixture: name}
		if name == "bf16" {
			to = cli.WeightType{DType: tensor.BF16}
		}
		if w, err := convertedWeights(src, to, ggufFormat); err == nil {
			types[name] = w
		} else if refused == nil {
			refused = err
		}
		b.Set("planning", int64(i+1), int64(len(names)))
	}
	if len(types) == 0 {
		return nil, refused
	}
	context := 0
	if len(contexts) > 0 {
		context = contexts[0]
	}
	r, err := header.FitOf(src.Path, src.Config, types, memory, context, batches[0])
	if err != nil {
		return nil, cli.Misuse(q.Command, err.Error())
	}
	return r, nil
}

// ggufFormat is the format that has mixtures of types.
const ggufFormat = "gguf"

// weightsOf returns what the weights of src take as they are stored, or as convert writes them.
func weightsOf(src *checkpoint.Checkpoint, imagined bool, to cli.WeightType) (header.Weights, error) {
	switch {
	case to != (cli.WeightType{}):
		if to.Mixture != "" {
			return convertedWeights(src, to, ggufFormat)
		}
		return convertedWeights(src, to, "")
	case imagined:
		return header.Weights{}, nil
	}
	return storedWeights(src)
}

// storedWeights returns what the headers of src say.
func storedWeights(src *checkpoint.Checkpoint) (header.Weights, error) {
	w := header.Weights{From: header.FromFiles}
	for _, x := range weights.New(src.Config, src).All() {
		parts, err := src.Parts(x.Stored)
		if err != nil {
			return w, err
		}
		for _, part := range parts {
			d, n := part.Stored(x.DType), part.N
			if len(parts) == 1 {
				n = int64(x.Len())
			}
			w.Held = append(w.Held, header.Held{Module: moduleOf(src, x), DType: d, Bytes: d.Bytes(n)})
		}
	}
	return w, nil
}

// moduleOf returns the module of a weight; for scales, the module of the weight that they scale.
func moduleOf(src *checkpoint.Checkpoint, w *weights.Weight) table.Module {
	if w.Layer >= src.Config.NumHiddenLayers {
		return table.MTP
	}
	return table.FamilyOf(src.Config).Place(w.Owner()).Module()
}

// convertedWeights returns what convert --to and --type would write.
func convertedWeights(src *checkpoint.Checkpoint, to cli.WeightType, format string) (header.Weights, error) {
	w := header.Weights{From: "convert --type " + to.String()}
	o := plan.Options{DType: to.DType, Mixture: to.Mixture, Format: format}
	src.Alone = true // tokenizers and other files beside the weights are not read
	o.NoVocab = format == ggufFormat && !src.ConfigInside()
	p, err := plan.Conversion(src, o)
	var refused *problem.Error
	if errors.As(err, &refused) {
		for i := range refused.Problems {
			if h := &refused.Problems[i].Hint; *h != "" {
				*h = "of convert: " + *h // its flags are not those of mem
			}
		}
	}
	if err != nil {
		return w, err
	}
	modules := map[string]table.Module{}
	for _, x := range weights.New(src.Config, src).All() {
		parts, _ := src.Parts(x.Stored)
		for _, part := range parts {
			modules[part.Tensor] = moduleOf(src, x)
		}
	}
	for i := range p.Tensors {
		t := &p.Tensors[i]
		w.Held = append(w.Held, header.Held{Module: modules[t.Segments[0].Tensor], DType: t.DType, Bytes: t.Bytes()})
	}
	return w, nil
}
