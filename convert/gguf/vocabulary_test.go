package gguf

import (
	"math"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"dsmoe/convert/format"
)

// TestVocabulary: what is said of a vocabulary stands in the keys; further ends that a list has follow the keys' own.
func TestVocabulary(t *testing.T) {
	d, err := describe(description(t, fstest.MapFS{tokenizerName: {Data: []byte(withProcessor(t, "null"))},
		settingsName: {Data: []byte(`{"bos_token": "<s>", "eos_token": "</s>", "chat_template": "x"}`)},
		samplingName: {Data: []byte(`{"eos_token_id": [3, 5, 3, 99, -1], "temperature": 0.6, "top_k": 20, "xtc_threshold": 0.5,
			"repetition_penalty": 1.05}`)}}))
	require.NoError(t, err)
	require.Equal(t, &format.Vocabulary{From: tokenizerName, Tokens: 12, Pre: "deepseek-coder", Template: true,
		Begin: &format.Token{ID: 2, Text: "<s>"}, Ends: []format.Token{{ID: 3, Text: "</s>"}, {ID: 5, Text: "<mask>"}},
		Sampling: []format.Parameter{{Name: "top_k", Value: "20"}, {Name: "temperature", Value: "0.6"},
			{Name: "repeat_penalty", Value: "1.05"}}}, d.Vocabulary)
	w := &keyWriter{b: make([]byte, 8)}
	w.put(tokensKey, []string{"a"})
	w.put("general.sampling.top_k", "1\nSYSTEM x")
	w.put("general.sampling.top_p", float32(math.NaN()))
	w.put("general.sampling.min_p", float32(math.Inf(-1)))
	w.put("general.sampling.temp", float32(1e-9))
	v, err := vocabularyOf(w.b, "keys", []int{0})
	require.NoError(t, err)
	require.Equal(t, []format.Parameter{{Name: "temperature", Value: "1e-09"}}, v.Sampling)
	none := description(t, nil)
	none.NoVocab = true
	d, err = describe(none)
	require.NoError(t, err)
	require.Nil(t, d.Vocabulary)
	_, err = vocabularyOf([]byte("\x01\x00\x00\x00\x00\x00\x00\x00cut"), "", nil)
	require.ErrorContains(t, err, "the keys of the output")
}
