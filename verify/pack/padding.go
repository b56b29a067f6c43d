package pack

import (
	"slices"

	"dsmoe/config"
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// Padding marks the rows of padding of a stage; nil marks no row.
type Padding []bool

// Has reports whether a row is padding.
func (p Padding) Has(row int) bool { return p != nil && p[row] }

// Count is the number of rows of padding.
func (p Padding) Count() (n int) {
	for _, is := range p {
		if is {
			n++
		}
	}
	return n
}

// PaddedTokens marks padding among n tokens in the order of a stage's rows, all tokens of each
// sequence or, in prediction layers, fewer: row t of a sequence is made of the tokens t to
// t + in.Seq - n/in.Batch, and it is padding if one of them is. It is nil without a mask.
func PaddedTokens(in *model.Input, n int) Padding {
	if in.AttentionMask == nil {
		return nil
	}
	padded, seq := make(Padding, n), n/in.Batch
	for i := range padded {
		first := i/seq*in.Seq + i%seq
		padded[i] = slices.Contains(in.AttentionMask[first:first+in.Seq-seq+1], 0)
	}
	return padded
}

// TokensOf returns the token of each row of a stage of a model of c, of this shape, and the number of tokens in the order
// of the stage's rows. It is nil for stages whose rows are not tokens.
func TokensOf(c *config.Config, name string, shape []int) (tokens []int, of int) {
	axis := Parse(name).tokenAxis(c, len(shape))
	if axis < 0 {
		return nil, 0
	}
	batch := 1
	if axis > 0 {
		batch = shape[0]
	}
	seq, each := shape[axis], elements(shape[axis+1:len(shape)-1])
	tokens = make([]int, elements(shape[:len(shape)-1]))
	sequence := len(tokens) / batch
	for i := range tokens {
		tokens[i] = i/sequence*seq + i/each%seq
	}
	return tokens, batch * seq
}

// PaddedRows marks the rows of padding of a stage of a model of c, of this shape. It is nil without a mask, and for stages
// whose rows are not tokens.
func PaddedRows(c *config.Config, in *model.Input, name string, shape []int) (rows Padding) {
	tokens, of := TokensOf(c, name, shape)
	if in.AttentionMask == nil {
		return nil
	}
	padded := PaddedTokens(in, of)
	for _, token := range tokens {
		rows = append(rows, padded.Has(token))
	}
	return rows
}

// ClearPadding sets what is not finite in rows of padding to 0. Nothing is compared with it, and the
// mask hides these rows from all tokens; but 0·NaN in a sum over masked keys would be a NaN.
func ClearPadding(values []float32, width int, padded Padding) []float32 {
	for row, is := range padded {
		for i := row * width; is && i < (row+1)*width; i++ {
			if v := values[i]; !tensor.IsFinite(v) {
				values[i] = 0
			}
		}
	}
	return values
}
