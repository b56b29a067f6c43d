package inspect

// GroupBy divides a list into groups of equal keys, in the order of the first of each key.
func GroupBy[T any, K comparable](all []T, key func(T) K) (groups [][]T) {
	index := map[K]int{}
	for _, x := range all {
		k := key(x)
		i, known := index[k]
		if !known {
			i = len(groups)
			index[k], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], x)
	}
	return groups
}
