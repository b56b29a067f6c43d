package pack

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
)

// IsChoices reports whether a path names an array of choices of experts, see Choices, and not a pack.
func IsChoices(path string) bool {
	return slices.Contains([]string{".npy", ".json"}, filepath.Ext(path)) && filepath.Base(path) != manifestName
}

// Choices reads the choices of experts that a rollout engine returns (routed_experts): [tokens, layers, k], in a .npy file of
// integers, or in JSON, as lists or as base64 of int32. They are those of the tokens of an input, without padding, by an engine
// that computes in a dtype, and are returned as a trace, which has them after Spell. layers counts the decoder's layers, or
// those that have a gate.
func Choices(path string, in *model.Input, computes tensor.DType) (*Pack, error) {
	data, err := readSmall(path, maxTokensFile)
	if err != nil {
		return nil, err
	}
	read := choicesOfJSON
	if filepath.Ext(path) == ".npy" {
		read = choicesOfNumpy
	}
	ids, shape, err := read(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", text.Quote(path), err)
	}
	hash := sha256.Sum256(data)
	p := &Pack{Dir: path, Hash: "sha256:" + hex.EncodeToString(hash[:]), DType: computes, Routing: true,
		Replaced: map[string]tensor.Tensor{}}
	p.Manifest = Manifest{Mode: "eval", ComputeDType: torchNames[computes], Tensors: map[string]Entry{},
		Reference: Reference{Kind: Engine, Name: "routed_experts", Version: filepath.Base(path)}}
	p.addInts(inputIDs, []int{in.Batch, in.Seq}, in.InputIDs)
	if in.AttentionMask != nil {
		p.addInts(attentionMask, []int{in.Batch, in.Seq}, in.AttentionMask)
	}
	p.complete = func(c *config.Config) error { return p.addChoices(c, in, ids, shape) }
	return p, nil
}

// addChoices gives each layer of a model of configuration c that has a gate its choices, those of an input.
func (p *Pack) addChoices(c *config.Config, in *model.Input, ids, shape []int) error {
	var gates []int
	for l := range c.NumHiddenLayers {
		if c.IsMoE(l) {
			gates = append(gates, l)
		}
	}
	k, tokens := c.MoE.NumExpertsPerTok, len(in.InputIDs)-PaddedTokens(in, len(in.InputIDs)).Count()
	if len(shape) == 1 && tokens*k > 0 && shape[0]%(tokens*k) == 0 { // base64 has no shape
		shape = []int{tokens, shape[0] / (tokens * k), k}
	}
	switch {
	case len(gates) == 0:
		return p.Fault("", "the model has no routed experts")
	case len(shape) != 3 || shape[2] != k:
		return p.Fault("", fmt.Sprintf("shape %v, [tokens, layers, %d] expected", shape, k))
	case shape[0] != tokens:
		return p.Fault("", fmt.Sprintf("choices of %d tokens, there are %d: an engine gives none for the last token that it "+
			"generated; leave that token out", shape[0], tokens))
	case shape[1] != len(gates) && shape[1] != c.NumHiddenLayers:
		return p.Fault("", fmt.Sprintf("choices of %d layers: the model has %d, and %d with routed experts", shape[1],
			c.NumHiddenLayers, len(gates)))
	}
	for n, layer := range gates {
		at := layer
		if shape[1] == len(gates) {
			at = n
		}
		values, row := make([]int, 0, len(in.InputIDs)*k), 0
		for token := range in.InputIDs {
			if in.IsPadding(token) {
				values = append(values, ids[:k]...) // any experts: they are not compared
				continue
			}
			values = append(values, ids[(row*shape[1]+at)*k:][:k]...)
			row++
		}
		p.addInts(StageOf(layer, TopKIdx), []int{len(in.InputIDs), k}, values)
	}
	return nil
}

// addInts adds a tensor of whole numbers.
func (p *Pack) addInts(name string, shape, values []int) {
	data := make([]byte, 0, 8*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint64(data, uint64(v))
	}
	p.Manifest.Tensors[name] = Entry{DType: tensor.I64, Shape: shape}
	p.Replaced[name] = tensor.Tensor{DType: tensor.I64, Shape: shape, Data: data}
}

// numpyHeader is what numpy's format says of an array, as Python writes it.
var numpyHeader = regexp.MustCompile(`^\{'descr': '([<|])([iu])([1248])', 'fortran_order': False, 'shape': \(([0-9, ]*)\), \} *\n$`)

// choicesOfNumpy returns the integers of a .npy file, and its shape.
func choicesOfNumpy(data []byte) (ids, shape []int, err error) {
	if len(data) < 12 || string(data[:6]) != "\x93NUMPY" || data[6] < 1 || data[6] > 3 {
		return nil, nil, errors.New("not a .npy file")
	}
	from, size := 10, int(binary.LittleEndian.Uint16(data[8:]))
	if data[6] > 1 {
		from, size = 12, int(binary.LittleEndian.Uint32(data[8:]))
	}
	if size > len(data)-from {
		return nil, nil, errors.New("the header ends too early")
	}
	m := numpyHeader.FindSubmatch(data[from : from+size])
	if m == nil {
		return nil, nil, fmt.Errorf("header %.120q: little-endian integers in C order expected", data[from:from+size])
	}
	n := 1
	for _, dim := range strings.FieldsFunc(string(m[4]), func(r rune) bool { return r == ',' || r == ' ' }) {
		d, err := strconv.Atoi(dim)
		if err != nil || d < 1 || d > maxTokensFile/n {
			return nil, nil, fmt.Errorf("shape (%s)", m[4])
		}
		shape, n = append(shape, d), n*d
	}
	width := int(m[3][0] - '0')
	if data = data[from+size:]; len(data) != n*width {
		return nil, nil, fmt.Errorf("%d bytes, shape %v of %d bytes each needs %d", len(data), shape, width, n*width)
	}
	for ; len(data) > 0; data = data[width:] {
		var v uint64
		for i, b := range data[:width] {
			v |= uint64(b) << (8 * i)
		}
		if unused := 64 - 8*width; m[2][0] == 'i' {
			v = uint64(int64(v<<unused) >> unused)
		}
		ids = append(ids, int(v))
	}
	return ids, shape, nil
}

// choicesOfJSON returns lists [tokens, layers, k], or the numbers of base64 of little-endian int32, of a shape of one axis;
// alone, or as the member routed_experts.
func choicesOfJSON(data []byte) (ids, shape []int, err error) {
	value := jsontext.Value(data)
	if value.Kind() == '{' {
		var object struct {
			Experts jsontext.Value `json:"routed_experts"`
		}
		if err := json.Unmarshal(data, &object); err != nil || object.Experts == nil {
			return nil, nil, errors.New("no routed_experts")
		}
		value = object.Experts
	}
	if value.Kind() == '"' {
		var encoded []byte // json reads base64
		if err := json.Unmarshal(value, &encoded); err != nil || len(encoded)%4 != 0 {
			return nil, nil, errors.New("routed_experts: not base64 of int32")
		}
		for ; len(encoded) > 0; encoded = encoded[4:] {
			ids = append(ids, int(int32(binary.LittleEndian.Uint32(encoded))))
		}
		return ids, []int{len(ids)}, nil
	}
	var lists [][][]int
	if err := json.Unmarshal(value, &lists); err != nil || len(lists) == 0 || len(lists[0]) == 0 {
		return nil, nil, errors.New("lists [tokens, layers, k] of whole numbers expected, or base64")
	}
	shape = []int{len(lists), len(lists[0]), len(lists[0][0])}
	for token, layers := range lists {
		for _, chosen := range layers {
			ids = append(ids, chosen...)
			if len(layers) != shape[1] || len(chosen) != shape[2] {
				return nil, nil, fmt.Errorf("lists of token %d are not %d x %d", token, shape[1], shape[2])
			}
		}
	}
	return ids, shape, nil
}
