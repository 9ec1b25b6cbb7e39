package options

// nearest is the known variable that takes the fewest edits to reach.
func nearest(name string) string {
	best, bestEdits := "", 0
	for _, o := range Table {
		if o.Env == "" || o.Internal {
			continue
		}
		if n := edits(name, o.Env); best == "" || n < bestEdits {
			best, bestEdits = o.Env, n
		}
	}
	return best
}

// edits is the Levenshtein distance, of at most the first 64 bytes.
func edits(a, b string) int {
	a, b = a[:min(len(a), 64)], b[:min(len(b), 64)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitute := diagonal
			if a[i] != b[j] {
				substitute++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitute, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
