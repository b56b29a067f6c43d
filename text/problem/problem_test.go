package problem

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestErrorListsTwenty(t *testing.T) {
	e := &Error{Path: "dir"}
	for i := range 25 {
		e.Problems = append(e.Problems, Problem{File: "f", Cause: fmt.Sprint("cause", i)})
	}
	require.True(t, strings.HasPrefix(e.Error(), "dir: 25 problems: f: cause0; f: cause1; "))
	require.True(t, strings.HasSuffix(e.Error(), "; f: cause19; and 5 more"))
}

func TestOneLine(t *testing.T) {
	for want, err := range map[string]error{
		"dir: missing":                         New("dir", "missing", "download it"),
		`"a b": a.bin: tensor "x\ny": cut off`: In("a b", Problem{File: "a.bin", Tensor: "x\ny", Cause: "cut off"}),
		"hidden_size: 0":                       In("", Problem{Field: "hidden_size", Cause: "0"}),
		"f: byte 7: bad":                       New("f", Byte(7, "bad"), ""),
		"f: bad":                               New("f", Byte(0, "bad"), ""),
		`"": file does not exist`:              System("", "", fs.ErrNotExist),
		"f: header: file does not exist":       System("f", "header", &fs.PathError{Op: "open", Path: "f", Err: fs.ErrNotExist}),
	} {
		require.EqualError(t, err, want)
	}
}

func TestUnwrap(t *testing.T) {
	missing := System("a", "", &fs.PathError{Op: "open", Path: "a", Err: fs.ErrNotExist})
	all := In("dir", append(Of("b", New("b", "empty", "")), Of("a", missing)...)...)
	require.EqualError(t, all, "dir: 2 problems: b: empty; a: file does not exist")
	require.ErrorIs(t, all, fs.ErrNotExist)
	require.NotErrorIs(t, New("b", "empty", ""), fs.ErrNotExist)
}

func TestOf(t *testing.T) {
	fields := In("", Problem{Field: "hidden_size", Cause: "0"}, Problem{Field: "eps", Cause: "NaN", Hint: "h"})
	plain := errors.New("plain")
	require.Equal(t, []Problem{
		{File: "c", Cause: "hidden_size: 0"}, {File: "c", Cause: "eps: NaN", Hint: "h"},
		{File: "c", Tensor: "x", Cause: "cut off"},
		{File: "c", Cause: "plain", Err: plain},
	}, Of("c", errors.Join(fields, fmt.Errorf("wrapped: %w", In("c", Problem{Tensor: "x", Cause: "cut off"})), plain)))
	require.Empty(t, Of("c", nil))
}
