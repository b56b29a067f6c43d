package synth

// Tokens returns n token ids below vocab, which is below 2^32, as torch draws them on the CPU:
//
//	torch.randint(vocab, (n,), generator=torch.Generator().manual_seed(seed))
//
// each being a draw mod vocab.
func Tokens(seed uint64, n, vocab int) []int {
	g, ids := newMT19937(seed), make([]int, n)
	for i := range ids {
		ids[i] = int(uint64(g.draw()) % uint64(vocab))
	}
	return ids
}
