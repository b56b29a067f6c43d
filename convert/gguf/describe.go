package gguf

// The keys of a file to be written.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"dsmoe/config"
	"dsmoe/convert/format"
	"dsmoe/model/tensor"
)

// describe is Dialect.Describe. Files beside the weights may be hostile: the first thing that is wrong in them ends it.
func describe(d format.Description) (described format.Described, err error) {
	if d.Source != nil {
		return rekeyed(d)
	}
	err = format.Parse(func() {
		c := d.Config
		w := &keyWriter{b: make([]byte, 8), arch: modelOf(c).arch, texts: map[string]string{}}
		w.put(architectureKey, w.arch)
		w.put("general.type", "model")
		metadataNotes := w.metadata(d)
		w.model(c)
		w.put(fileTypeKey, fileType(d))
		w.put(quantisationKey, quantisationVersion)
		for _, was := range []tensor.DType{tensor.BF16, tensor.F16} {
			var names []string // of tensors that are F32 in the file only
			for i, info := range d.Tensors {
				if d.Was[i] == was && info.DType == tensor.F32 && storedF32(w.arch, info.Name, len(info.Shape), nil) {
					names = append(names, info.Name)
				}
			}
			w.putSome(widenedKey+was.String(), names)
		}
		from, notes := w.putTokenizer(d)
		w.importanceKeys(d.Imatrix)
		vocabulary, err := vocabularyOf(w.b, from, endsOf(d))
		if err != nil { // texts from files beside the weights can exceed a reader's limits
			format.Fail(err)
		}
		described = format.Described{Keys: w.b, Stem: stem(d, fileType(d), func(key string) string { return w.texts[key] }),
			Notes: slices.Concat(warnings(c), notes, metadataNotes), Vocabulary: vocabulary}
	})
	return described, err
}

// stem returns the stem of the files' names: a name that the user gave, or naming_convention of gguf-py, and the type
// as llama.cpp's file names have it; the dtype of most elements stands for an unknown one.
func stem(d format.Description, fileType uint32, text func(key string) string) string {
	name := strings.NewReplacer(" ", "-", "/", "-", `\`, "-").Replace(d.Named)
	if name == "" {
		parts := []string{cmp.Or(fileName(text(baseKey)), fileName(text(nameKey)), "ggml-model"), fileName(text(sizeKey)),
			fileName(text(finetuneKey)), fileName(text(versionKey))}
		name = strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), "-")
		name = strings.ToValidUTF8(name[:min(len(name), maxStem)], "")
	}
	for word, number := range fileTypes {
		if number == fileType {
			return name + "-" + strings.ToUpper(word)
		}
	}
	return name + "-" + most(d.Tensors).String()
}

// maxStem bounds a name that comes from README.md or from keys, in bytes: systems take 255 for a
// file's, and a type and the number of a shard follow.
const maxStem = 150

// fileName makes a part of a file's name of a text: it can be printed, and begins neither a hidden
// file's name nor an option.
func fileName(s string) string {
	return strings.TrimLeft(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || strings.ContainsRune(` /\`, r) {
			return '-'
		}
		return r
	}, s), "-.")
}

// model writes the keys that come from config.json.
func (w *keyWriter) model(c *config.Config) {
	a := architectureNamed(w.arch)
	switch {
	case w.arch == deepseek4:
		w.windowed(c)
		return
	case a.grouped != nil:
		w.grouped(c, a)
		return
	}
	w.of(blockCount, uint32(c.NumHiddenLayers+c.NumNextNPredictLayers))
	for _, row := range a.rows {
		if v := row.value(c); v != nil {
			w.of(row.key, v)
		}
	}
	w.of(vocabSize, uint32(c.VocabSize))
	dense := c.Layers.FirstKDenseReplace
	if c.MoELayers() == nil {
		dense = c.NumHiddenLayers
	}
	w.of(denseCount, uint32(dense))
	w.of(sharedCount, uint32(c.MoE.NSharedExperts))
	w.of(gatingFunc, cmp.Or(gatings[c.Router.ScoringFunc], gatings[softmax])) // which a model without experts has, too
	w.of(ropeDims, uint32(c.HeadDim()))
	normalise, scale := c.TopKWeights()
	if w.arch == deepseek {
		w.of(headCountKV, uint32(c.Attention.NumKeyValueHeads))
		w.of(weightsScale, float32(1))
		if s := c.RoPE.RopeScaling; s != nil {
			w.of(scalingType, s.Type)
			w.of(scalingFactor, float32(s.Factor))
		} else {
			w.of(scalingType, "none")
		}
		return
	}
	w.of(weightsScale, float32(scale))
	if normalise {
		w.of(weightsNorm, true)
	}
	w.groups(c)
	if c.Attention.QLoraRank > 0 || !isLite(c.NumHiddenLayers, c.VocabSize) {
		w.of(queryRank, uint32(c.Attention.QLoraRank)) // 0 means no rank; every model but the lite one needs the key
	}
	w.of(headCountKV, uint32(1)) // llama.cpp multiplies queries into the compressed keys and values, which are one head
	w.of(keyLength, uint32(c.Attention.KVLoraRank+c.Attention.QKRopeHeadDim))
	w.of(valueLength, uint32(c.Attention.KVLoraRank))
	w.of(keyMLA, uint32(c.QKHeadDim()))
	w.of(valueMLA, uint32(c.Attention.VHeadDim))
	w.yarn(c.RoPE.RopeScaling)
	if c.NumNextNPredictLayers > 0 {
		w.of(nextnLayers, uint32(c.NumNextNPredictLayers))
	}
	if !c.HasIndexer() {
		return
	}
	w.of(indexerHeads, uint32(c.Indexer.IndexNHeads))
	w.of(indexerWidth, uint32(c.Indexer.IndexHeadDim))
	w.of(indexerTopK, uint32(c.Indexer.IndexTopK))
	if c.Indexer.IndexerTypes != nil { // without them each layer has an indexer
		var full []bool
		for l := range c.NumHiddenLayers {
			full = append(full, c.IndexerOf(l) == l)
		}
		w.of(indexerTypes, full)
	}
}

// warnings say what llama.cpp computes otherwise.
func warnings(c *config.Config) (notes []string) {
	if c.Router.TopKMethod == "group_limited_greedy" && limited(c) {
		notes = append(notes,
			"llama.cpp chooses groups by the sum of their two best scores, "+
				"DeepSeek-V2 by the best: some tokens go to other experts there")
	}
	if c.LatentAttention() && c.RMSNormEps != config.LatentEps {
		notes = append(notes, fmt.Sprintf("llama.cpp takes rms_norm_eps %g in q_a_layernorm and kv_a_layernorm too, "+
			"where the reference has %g: its logits are slightly different ones", c.RMSNormEps, config.LatentEps))
	}
	if modelOf(c).arch == glmDSA {
		notes = append(notes, fmt.Sprintf("llama.cpp computes the indexers' LayerNorm with eps 0, where the reference has %g",
			config.LatentEps))
	}
	if c.NumNextNPredictLayers > 0 && !predicts(c) {
		notes = append(notes, "the prediction layers are named as llama.cpp loads them; "+
			"its own converter leaves them out, and no program is known to run them")
	}
	return notes
}

// quantisationVersion is GGML_QNT_VERSION, of the blocks that ggml reads.
const quantisationVersion = uint32(2)

// fileTypes are the numbers of general.file_type: enum llama_ftype.
var fileTypes = map[string]uint32{"F32": 0, "F16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q3_k_s": 11, "q3_k_m": 12,
	"q3_k_l": 13, "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16, "q5_k_m": 17, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30, "BF16": 32,
	"mxfp4": 38}

// fileType returns general.file_type: the type asked for, or the dtype of most elements. llama.cpp's converter has one
// type for DeepSeek-V4 as it is published.
func fileType(d format.Description) uint32 {
	is := func(info tensor.Info) bool { return info.DType == tensor.MXFP4 }
	if modelOf(d.Config).arch == deepseek4 && slices.ContainsFunc(d.Tensors, is) {
		return fileTypes["mxfp4"]
	}
	if n, known := fileTypes[d.Type]; known {
		return n
	}
	kept := most(d.Tensors).String() // F32, F16 or BF16, or blocks that hold the source's codes
	if n, known := fileTypes[kept]; known {
		return n
	}
	return fileTypes[strings.ToLower(kept)]
}
