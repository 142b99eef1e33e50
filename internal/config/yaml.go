package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// yaml reads a configuration file. Problems name the line.
func (l *loader) yaml(name string, data []byte) {
	var doc, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return // empty, or nothing but comments
	} else if err != nil {
		l.problem(name, "", "%v", err)
		return
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		l.problem(name, "", "holds more than one document")
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		if root.Tag != "!!null" {
			l.problem(name, "", "must hold keys and values")
		}
		return
	}
	l.mapping(name, "", root)
}

// mapping reads one level of keys; prefix is the group's, with its dot.
func (l *loader) mapping(name, prefix string, node *yaml.Node) {
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		at, value := node.Content[i], node.Content[i+1]
		key := prefix + at.Value
		source := fmt.Sprintf("%s:%d", name, at.Line)
		if seen[key] {
			l.problem(key, source, "is given twice")
			continue
		}
		seen[key] = true
		s, isSetting := find(key)
		switch {
		case value.Tag == "!!null" && (isSetting || isGroup(key)):
			// A key without a value keeps its default.
		case isSetting:
			l.value(s, source, value)
		case isGroup(key) && value.Kind == yaml.MappingNode:
			l.mapping(name, key+".", value)
		case isGroup(key):
			l.problem(key, source, "must hold keys and values")
		default:
			l.problem(key, source, "is not a setting of alineod%s", hint(key, keys()))
		}
	}
}

func (l *loader) value(s setting, source string, node *yaml.Node) {
	list, isList := s.field(l.config).(*[]string)
	switch {
	case node.Kind == yaml.ScalarNode:
		l.set(s, source, node.Value)
	case node.Kind == yaml.SequenceNode && isList:
		var items []string
		for _, item := range node.Content {
			if item.Kind != yaml.ScalarNode {
				l.problem(s.key, source, "must be a list of strings")
				return
			}
			items = append(items, item.Value)
		}
		*list = items
		l.config.origins[s.key] = source
	default:
		l.problem(s.key, source, "must be a single value")
	}
}

func find(key string) (setting, bool) {
	for _, s := range settings {
		if s.key == key {
			return s, true
		}
	}
	return setting{}, false
}

func isGroup(key string) bool {
	for _, s := range settings {
		if strings.HasPrefix(s.key, key+".") {
			return true
		}
	}
	return false
}

func keys() []string {
	out := make([]string, len(settings))
	for i, s := range settings {
		out[i] = s.key
	}
	return out
}

// hint names the known name that is nearest to a wrong one, if one is near.
func hint(wrong string, known []string) string {
	best, distance := "", 1+len(wrong)/4
	for _, name := range known {
		if d := edits(strings.ToLower(wrong), strings.ToLower(name)); d <= distance && (best == "" || d < distance) {
			best, distance = name, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// edits counts the letters to add, drop or change to make b of a.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
