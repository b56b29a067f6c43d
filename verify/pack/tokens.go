package pack

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"dsmoe/model"
	"dsmoe/model/tensor"
	"dsmoe/text"
	"dsmoe/text/problem"
)

// maxTokensFile is how large a file of tokens may be.
const maxTokensFile = 256 << 20

// ReadTokens reads a file of tokens as golden.py --tokens does: a safetensors file with I64 tensors
// input_ids and, with padding, attention_mask; or JSON, an object with lists under these names, or
// the list of ids alone. Ids are [batch, seq], or one sequence. The error names the
// file. Ids are not compared with a vocabulary.
func ReadTokens(path string) (*model.Input, error) {
	data, err := readSmall(path, maxTokensFile)
	if errors.Is(err, fs.ErrNotExist) {
		missing := problem.System(path, "", err)
		missing.Problems[0].Hint = "tokens are a file of JSON, such as [[3, 14, 15]], or a .safetensors file"
		return nil, missing
	} else if err != nil {
		return nil, err
	}
	read := tokensOfJSON
	if strings.HasSuffix(path, ".safetensors") {
		read = tokensOfTensors
	}
	in, err := read(data)
	if err == nil && len(in.InputIDs) == 0 {
		err = errNoToken
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", text.Quote(path), err)
	}
	return in, nil
}

// errNoToken refuses an empty input.
var errNoToken = errors.New(inputIDs + ": no token")

// readSmall reads a regular file of at most so many bytes.
func readSmall(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, problem.System(path, "", err)
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, problem.New(path, "not a regular file of at most "+text.Bytes(most), "")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, problem.System(path, "", err)
	}
	return data, nil
}

func tokensOfTensors(data []byte) (*model.Input, error) {
	extents, from, err := extentsOf(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, err
	}
	tensorOf := func(e extent) tensor.Tensor {
		return tensor.Tensor{DType: e.DType, Shape: e.Shape, Data: data[from+e.from:][:e.Bytes()]}
	}
	x, ok := extents[inputIDs]
	if !ok {
		return nil, errors.New("no " + inputIDs)
	}
	ids, err := ints(tensorOf(x))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", inputIDs, err)
	}
	var mask []int
	padding, ok := extents[attentionMask]
	if ok {
		if mask, err = ints(tensorOf(padding)); err != nil {
			return nil, fmt.Errorf("%s: %w", attentionMask, err)
		}
	}
	return newInput(ids, batched(x.Shape), mask, batched(padding.Shape))
}

// batched is a shape in which one sequence is a batch of one.
func batched(shape []int) []int {
	if len(shape) == 1 {
		return []int{1, shape[0]}
	}
	return shape
}

func tokensOfJSON(data []byte) (*model.Input, error) {
	var members map[string]jsontext.Value
	value := jsontext.Value(data)
	var wrong *jsontext.SyntacticError
	if err := json.Unmarshal(data, new(jsontext.Value)); errors.As(err, &wrong) {
		return nil, fmt.Errorf("byte %d: %s; tokens are JSON, such as [[3, 14, 15]], or a .safetensors file", wrong.ByteOffset,
			text.SyntaxCause(wrong))
	}
	if value.Kind() == '{' {
		if err := json.Unmarshal(data, &members); err != nil {
			return nil, err
		}
	} else {
		members = map[string]jsontext.Value{inputIDs: value}
	}
	if members[inputIDs] == nil {
		return nil, errors.New("no " + inputIDs)
	}
	ids, shape, err := lists(members[inputIDs])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", inputIDs, err)
	}
	var mask, maskShape []int
	if m := members[attentionMask]; m != nil && m.Kind() != 'n' {
		if mask, maskShape, err = lists(m); err != nil {
			return nil, fmt.Errorf("%s: %w", attentionMask, err)
		}
	}
	return newInput(ids, shape, mask, maskShape)
}

// lists reads a list of whole numbers, or a list of such lists of one length.
func lists(value jsontext.Value) (all, shape []int, err error) {
	var row []int
	if err := json.Unmarshal(value, &row); err == nil {
		return row, []int{1, len(row)}, nil
	}
	var rows [][]int
	if json.Unmarshal(value, &rows) != nil {
		return nil, nil, fmt.Errorf("neither whole numbers nor lists of them: %s", text.Quote(text.Clip(string(value), 40)))
	}
	for i, row := range rows {
		if len(row) != len(rows[0]) {
			return nil, nil, fmt.Errorf("%d numbers in list %d, %d in the first: sequences have one length, with %s 0 where "+
				"there is padding", len(row), i, len(rows[0]), attentionMask)
		}
		all = append(all, row...)
	}
	if len(rows) == 0 {
		return nil, []int{0, 0}, nil
	}
	return all, []int{len(rows), len(rows[0])}, nil
}

// newInput returns the input of ids [batch, seq] and, unless it is nil, a mask.
func newInput(ids, shape, mask, maskShape []int) (*model.Input, error) {
	if len(shape) != 2 {
		return nil, fmt.Errorf("%s: shape %v, [batch, seq] expected", inputIDs, shape)
	}
	in := &model.Input{Batch: shape[0], Seq: shape[1], InputIDs: ids}
	if mask == nil {
		return in, nil
	}
	if !slices.Equal(maskShape, shape) {
		return nil, fmt.Errorf("%s: shape %v, %s has %v", attentionMask, maskShape, inputIDs, shape)
	}
	if i := slices.IndexFunc(mask, func(m int) bool { return m != 0 && m != 1 }); i >= 0 {
		return nil, fmt.Errorf("%s[%d, %d]: %d is not 0 or 1", attentionMask, i/in.Seq, i%in.Seq, mask[i])
	}
	in.AttentionMask = mask
	return in, nil
}
