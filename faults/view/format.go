package view

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/penstock-gpu/penstock/faults/symbol"
	"github.com/penstock-gpu/penstock/internal/size"
)

// mostRows is how many rows people get of a table; programs get all.
const mostRows = 25

// Cell is a value for people; nil is n/a.
func Cell(v any, u Unit) string {
	switch x := v.(type) {
	case nil:
		return "n/a"
	case string:
		if u == Kernel {
			return symbol.Readable(x)
		}
		return x
	case int64:
		if u == Bytes {
			return size.Text(x)
		}
		return group(strconv.FormatInt(x, 10))
	case uint64:
		if u == Address {
			return "0x" + strconv.FormatUint(x, 16)
		}
		return group(strconv.FormatUint(x, 10))
	case float64:
		switch u {
		case Share:
			return strconv.FormatFloat(100*x, 'f', 1, 64) + " %"
		case Seconds:
			return seconds(x)
		}
		return strconv.FormatFloat(x, 'f', 2, 64)
	}
	return fmt.Sprint(v)
}

func seconds(s float64) string {
	switch a := math.Abs(s); {
	case a == 0:
		return "0 s"
	case a < 1e-3:
		return strconv.FormatFloat(s*1e6, 'f', 0, 64) + " us"
	case a < 1:
		return strconv.FormatFloat(s*1e3, 'f', 1, 64) + " ms"
	}
	return strconv.FormatFloat(s, 'f', 2, 64) + " s"
}

// group puts commas between thousands.
func group(n string) string {
	sign := ""
	if strings.HasPrefix(n, "-") {
		sign, n = "-", n[1:]
	}
	var b strings.Builder
	for i, d := range n {
		if i > 0 && (len(n)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return sign + b.String()
}

// Plain makes a name safe for a terminal and short enough for a line.
func Plain(name string, most int) string {
	var b strings.Builder
	n := 0
	for _, r := range name {
		if n++; n > most {
			return strings.TrimSuffix(b.String(), " ") + "…"
		}
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}

func (t *Table) shown() (rows [][]any, cut int) {
	if len(t.Rows) > mostRows {
		return t.Rows[:mostRows], len(t.Rows) - mostRows
	}
	return t.Rows, 0
}

// named says that a column has names, not numbers.
func (c *Column) named() bool { return c.Unit == Text || c.Unit == Kernel }

func (t *Table) heads() bool {
	for _, c := range t.Columns {
		if c.Title != "" {
			return true
		}
	}
	return false
}

// visible leaves out the columns that are only for programs.
func (t *Table) visible() []int {
	var at []int
	for i, c := range t.Columns {
		if c.ID != "raw" {
			at = append(at, i)
		}
	}
	return at
}

// WriteText writes aligned text. name is the width left for names.
func (t *Table) WriteText(w io.Writer, name int) error {
	rows, cut := t.shown()
	at := t.visible()
	widths := make([]int, len(at))
	lines := make([][]string, 0, len(rows)+1)
	if t.heads() {
		head := make([]string, len(at))
		for i, c := range at {
			head[i] = t.Columns[c].Title
		}
		lines = append(lines, head)
	}
	for _, r := range rows {
		line := make([]string, len(at))
		for i, c := range at {
			line[i] = Plain(Cell(r[c], t.Columns[c].Unit), name)
		}
		lines = append(lines, line)
	}
	for _, l := range lines {
		for i, text := range l {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", t.Title)
	for _, l := range lines {
		var line strings.Builder
		line.WriteString(" ")
		for i, text := range l {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if t.Columns[at[i]].named() && i == 0 {
				line.WriteString(" " + text + pad)
			} else {
				line.WriteString("  " + pad + text)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	if cut > 0 {
		fmt.Fprintf(&b, "  and %s more (--format csv or json has all)\n", group(strconv.Itoa(cut)))
	}
	if t.Note != "" {
		fmt.Fprintf(&b, "  %s\n", Plain(t.Note, 1000))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteMarkdown writes a Markdown table.
func (t *Table) WriteMarkdown(w io.Writer) error {
	rows, cut := t.shown()
	at := t.visible()
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n|", t.Title)
	for _, c := range at {
		fmt.Fprintf(&b, " %s |", t.Columns[c].Title)
	}
	b.WriteString("\n|")
	for range at {
		b.WriteString(" --- |")
	}
	b.WriteString("\n")
	escape := strings.NewReplacer("|", "\\|", "<", "&lt;", "&", "&amp;", "`", "\\`", "*", "\\*", "_", "\\_", "[", "\\[")
	for _, r := range rows {
		b.WriteString("|")
		for _, c := range at {
			fmt.Fprintf(&b, " %s |", escape.Replace(Plain(Cell(r[c], t.Columns[c].Unit), 120)))
		}
		b.WriteString("\n")
	}
	if cut > 0 {
		fmt.Fprintf(&b, "\nAnd %s more.\n", group(strconv.Itoa(cut)))
	}
	if t.Note != "" {
		fmt.Fprintf(&b, "\n%s\n", escape.Replace(Plain(t.Note, 1000)))
	}
	_, err := io.WriteString(w, b.String()+"\n")
	return err
}

// WriteCSV writes one table: a line of column ids, then bare values.
func (t *Table) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	line := make([]string, len(t.Columns))
	for i, col := range t.Columns {
		line[i] = col.ID
	}
	if err := c.Write(line); err != nil {
		return err
	}
	for _, r := range t.Rows {
		for i, v := range r {
			line[i] = bare(v, t.Columns[i].Unit)
		}
		if err := c.Write(line); err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}

func bare(v any, u Unit) string {
	switch x := v.(type) {
	case nil:
		return ""
	case string:
		// A spreadsheet would run what begins like this.
		if x != "" && strings.ContainsRune("=+-@\t\r", rune(x[0])) {
			return "'" + x
		}
		return x
	case uint64:
		if u == Address {
			return "0x" + strconv.FormatUint(x, 16)
		}
		return strconv.FormatUint(x, 10)
	case float64:
		return strconv.FormatFloat(x, 'g', -1, 64)
	}
	return fmt.Sprint(v)
}

// WriteJSON writes rows as objects with the column ids as names.
func (t *Table) WriteJSON(w io.Writer) error {
	rows := make([]map[string]any, len(t.Rows))
	for i, r := range t.Rows {
		rows[i] = map[string]any{}
		for k, v := range r {
			rows[i][t.Columns[k].ID] = v
		}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(map[string]any{"view": t.Name, "rows": rows})
}
